"""Picking sampled tokens on the device: its memory, its kernel, and what a draw is there.

``kernels/pick.cl`` says how. Here numbers of 64 bits become ones of 32 that mean the same: what is
beyond their range becomes the nearest that is not, or what it amounts to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyopencl as cl

from caldrix.models.draw import Draw
from caldrix.models.lane import LaneError
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.build import Builder
from caldrix_opencl.context import TILE, Context

_CHUNK = 1024
"""Tokens that are added up by themselves, as in the kernel."""
_CHUNKS = 256
"""What the room for their sums is a multiple of."""
_GROUP = 256
"""Work-items of a group on a GPU, if it takes so many."""
_LEAST, _MOST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

_SETTINGS = np.dtype(
    [
        ("inverse", np.float32),
        ("top_p", np.float32),
        ("least_below", np.float32),
        ("penalty", np.float32),
        ("uniform", np.float32),
        ("top_k", np.int32),
        ("row", np.int32),
        ("seen_from", np.int32),
        ("seen_count", np.int32),
    ]
)
"""As the kernel has them."""


class Picker:
    """Picks tokens from logits on the device, at most ``most`` in one go.

    Rows of ``logits`` are padded to whole tiles. A draw's seen tokens are at most ``positions``.
    """

    kind = "pick"

    def __init__(
        self, context: Context, logits: cl.Buffer, vocab_size: int, most: int, positions: int
    ) -> None:
        self._queue = context.queue
        self._vocab_size = vocab_size
        self._most_seen = min(positions, vocab_size)
        self._lanes = context.shape.lanes
        group = min(_GROUP, context.device.group_size)
        self._members = 1 if self._lanes == 1 else group // self._lanes
        self._settings = np.zeros(most, _SETTINGS)
        self._seen = np.zeros(most * self._most_seen, np.int32)
        self._tokens = np.zeros(most, np.int32)
        self._on_device = [
            context.allocate(each.nbytes) for each in (self._seen, self._settings, self._tokens)
        ]
        # Sizes of few models differ, so that others find the program in the cache.
        chunks = padded(_chunks(vocab_size), _CHUNKS)
        program = Builder(context).program(
            ["lanes", "pick"], {"MEMBERS": self._members, "MOST_CHUNKS": chunks}
        )
        self._kernel = cl.Kernel(program, "pick_token")
        weights, partial = (context.allocate(most * each) for each in _scratch_bytes(vocab_size))
        self._kernel.set_args(logits, weights, partial, *self._on_device, np.int32(vocab_size))

    def check(self, draw: Draw) -> None:
        """Raises LaneError for what would make the kernel read or write past its memory."""
        count = len(draw.seen)
        if count > self._most_seen:
            raise LaneError(f"a draw has {count} seen tokens, and {self._most_seen} are the most")
        if count and not 0 <= draw.seen.min() <= draw.seen.max() < self._vocab_size:
            raise LaneError(f"seen tokens are 0 to {self._vocab_size - 1}")

    def pick(self, first_row: int, draws: Sequence[Draw]) -> list[int]:
        """The tokens of the rows of logits from ``first_row`` on, once they are computed.

        A row that was penalized is so afterwards. A token is negative where the logits are
        unusable. Raises pyopencl's errors.
        """
        count, seen = len(draws), 0
        for index, draw in enumerate(draws):
            ids = draw.seen if draw.repetition_penalty != 1.0 else draw.seen[:0]
            self._seen[seen : seen + len(ids)] = ids
            self._settings[index] = (
                *_numbers(draw),
                draw.top_k if draw.top_k < self._vocab_size else 0,
                first_row + index,
                seen,
                len(ids),
            )
            seen += len(ids)
        seen_buffer, settings, tokens = self._on_device
        # An event that is dropped before its copy has ended waits for it, and all threads with it.
        copies = [
            cl.enqueue_copy(self._queue, buffer, values, is_blocking=False)
            for buffer, values in (
                (seen_buffer, self._seen[:seen]),
                (settings, self._settings[:count]),
            )
            if len(values)
        ]
        local = self._members * self._lanes, 1
        cl.enqueue_nd_range_kernel(self._queue, self._kernel, (local[0], count), local)
        cl.enqueue_copy(self._queue, self._tokens[:count], tokens, is_blocking=True)
        copies.clear()
        picked: list[int] = self._tokens[:count].tolist()
        return picked


def picker_bytes(vocab_size: int, most: int, positions: int) -> int:
    """Bytes that a `Picker` takes on the device."""
    seen = 4 * min(positions, vocab_size)
    return most * (sum(_scratch_bytes(vocab_size)) + seen + _SETTINGS.itemsize + 4)


def _scratch_bytes(vocab_size: int) -> tuple[int, int]:
    """Of a row's weights, and of sums of its chunks, one for each lane."""
    return 4 * padded(vocab_size, TILE_ROWS), 4 * TILE * _chunks(vocab_size)


def _chunks(vocab_size: int) -> int:
    return -(-vocab_size // _CHUNK)


def _numbers(draw: Draw) -> tuple[float, float, float, float, float]:
    """What the kernel computes with, each a float32 in all but type."""
    doubled = 2.0 / draw.temperature
    return (
        # From infinity on, and from 0 down, only the best or all alike are drawn.
        doubled if doubled <= _MOST else math.inf,
        draw.top_p,
        0.5 * math.log(draw.min_p) if draw.min_p > 0.0 else -math.inf,
        # The ends of the range are not 0 or infinite, which would make no numbers of some logits.
        min(max(draw.repetition_penalty, _LEAST), _MOST),
        draw.uniform,
    )
