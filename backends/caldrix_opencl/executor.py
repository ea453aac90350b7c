"""Runs a compiled Program: a step puts its tokens on the device and launches what was prepared."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyopencl as cl

from caldrix.models.draw import Draw
from caldrix.models.lane import LaneError, LaneLost, LaneOptions, PrefillSizes, Slice, Snapshot
from caldrix.models.program import Program
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu.numpy_step import put_features
from caldrix_cpu.runs import MOST_TOKENS, Run, runs_of
from caldrix_cpu.slice_checks import SliceLimits
from caldrix_opencl.addresses import StepBuffers
from caldrix_opencl.context import MOST_TOGETHER, Context
from caldrix_opencl.launches import SEGMENT, Extent, Launch, separately
from caldrix_opencl.picks import Picker
from caldrix_opencl.plan import Plan
from caldrix_opencl.rows import Cache, State, rows_on_device
from caldrix_opencl.weights import matrix_bytes, products

ROOM = MOST_TOKENS + MOST_TOGETHER
"""Tokens that the arena has a row for: a group that is filled up writes past the last."""
PREFILL_ON_GPU = PrefillSizes(alone=512, shared=256)
"""Weights are read for each group of tokens, and a GPU is full only with many of them."""
MOST_LOGITS = 32
"""Tokens whose logits are computed at a time."""


class OpenClExecutor:
    """See `caldrix.models.lane.Executor`, and `PickingExecutor` for one with a ``picker``."""

    reproducible = True

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Tensor],
        options: LaneOptions,
        context: Context,
        plan: Plan,
        caches: Sequence[Cache],
        states: Sequence[State],
        buffers: StepBuffers,
        launches: tuple[Sequence[Launch], Sequence[Launch]],
        row_bytes: int,
        picker: Picker | None,
    ) -> None:
        self.vocab_size = program.vocab_size
        self.row_bytes = row_bytes
        self.bytes_read_per_token = sum(matrix_bytes(each, weights) for each in products(plan))
        self.rewinds = not states
        self.device_memory = context.device.name if context.device.is_gpu else None
        self.prefill = PREFILL_ON_GPU if context.device.is_gpu else PrefillSizes()
        self._limits = SliceLimits(program.vocab_size, options.context, plan.begin.out.width)
        self._context = context
        self._queue = context.queue
        self._sizes = context.shape.tokens
        self._plan = plan
        self._buffers = buffers
        self._before, self._after = launches
        self._rows = rows_on_device(caches, states, options.rows, context)
        self._picker = picker
        self._picked: list[int] = []
        self._left = False
        self._embedding = weights[plan.begin.weight]
        self._scale = np.float32(plan.begin.scale)
        place = plan.places[plan.begin.out]
        self._embeddings = np.zeros((MOST_TOKENS, place.stride), np.float32)
        self._embeddings_at = 4 * place.at(buffers.tokens)
        self._places = np.zeros((MOST_TOKENS, 2), np.int32)
        self._slices = np.zeros((MOST_TOKENS, 4), np.int32)
        self._logits = np.empty((1, buffers.logits_stride), np.float32)
        self._copies: list[cl.Event] = []
        """Of what is on its way to the device."""

    @property
    def launches_per_token(self) -> int:
        """Kernels that a step of one token launches, where none looks back past a segment."""
        return len(self._before) + len(self._after)

    @property
    def picks(self) -> bool:
        """Whether it was compiled to."""
        return self._picker is not None

    @property
    def picked(self) -> Sequence[int]:
        """The last step's tokens."""
        return self._picked

    def enqueue_seconds(self) -> float:
        """Seconds until a token's launches are all enqueued; waits until they have run.

        Rows hold nothing usable afterwards. Raises LaneLost.
        """
        with self._probing(1, 0) as launches:
            began = time.perf_counter()
            for launch in launches:
                launch.enqueue(self._queue, Extent(1))
            return time.perf_counter() - began

    def launch_seconds(self, tokens: int, position: int, times: int) -> list[float]:
        """Seconds that each kernel takes by itself, run ``times`` times in a row, in order.

        What a step of one token does in one launch is launched separately here.

        For one token of each of the first ``tokens`` rows, at that position. Rows hold nothing
        usable afterwards. Raises LaneLost.
        """
        extent = Extent(tokens, tokens, position)
        measured = []
        with self._probing(tokens, position) as launches:
            for launch in chain.from_iterable(map(separately, launches)):
                began = time.perf_counter()
                for _ in range(times):
                    launch.enqueue(self._queue, extent)
                self._queue.finish()
                measured.append((time.perf_counter() - began) / times)
        return measured

    def step(self, slices: Sequence[Slice]) -> Float32:
        """Computes the slices; the logits are a view that the next step overwrites."""
        self._check_present()
        self._limits.check(slices)
        for each in slices:
            self._rows.check(each.row, each.start)
            self._check_draw(each.draw)
        for each in slices:
            self._rows.begin(each)
        self._picked = []
        wanted = sum(each.wanted for each in slices if each.draw is None)
        if wanted > len(self._logits):
            self._logits = np.empty((wanted, self._buffers.logits_stride), np.float32)
        done = 0
        with self._losing():
            for run in runs_of(slices):
                done += self._compute(run, self._logits[done:wanted])
        for each in slices:
            self._rows.end(each)
        return self._logits[:wanted, : self.vocab_size]

    def resumable(self, row: int, length: int) -> int:
        """Where to go on from: anywhere that a row's windows still hold. Raises LaneError."""
        self._check_present()
        return self._rows.resumable(row, length)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies keys and values on the device."""
        self._check_present()
        with self._losing():
            self._rows.copy(source, target, length)

    def snapshot(self, row: int, length: int) -> Snapshot:
        """Copies them to memory of their own, on the device."""
        self._check_present()
        with self._losing():
            return self._rows.snapshot(row, length)

    def snapshot_bytes(self, length: int) -> int:
        """What that takes."""
        self._check_present()
        return self._rows.snapshot_bytes(length)

    def restore(self, snapshot: Snapshot, row: int) -> None:
        """Copies them back, to any row."""
        self._check_present()
        with self._losing():
            self._rows.restore(snapshot, row)

    def make_ready(self) -> None:
        """Launches each kind of kernel once: drivers finish some of their work only then.

        Rows hold nothing yet, and nothing afterwards. Raises pyopencl's errors.
        """
        self._places[:] = self._slices[:] = 0
        cl.enqueue_copy(self._queue, self._buffers.places, self._places)
        cl.enqueue_copy(self._queue, self._buffers.slices, self._slices)
        cl.enqueue_copy(self._queue, self._buffers.wanted, np.zeros(MOST_LOGITS, np.int32))
        done: set[object] = set()
        for launch in (*self._before, *self._after):
            if launch.kind not in done:
                done.add(launch.kind)
                for tokens in self._sizes:
                    launch.enqueue(self._queue, Extent(tokens))
                launch.enqueue(self._queue, Extent(1, last_position=SEGMENT))
        if self._picker is not None:
            self._picker.pick(0, [Draw(uniform=0.5, temperature=1.0)])
        self._queue.finish()

    def leave(self) -> None:
        """Ends its use: its memory is about to go."""
        self._left = True
        self._before, self._after = (), ()

    @contextmanager
    def _probing(self, tokens: int, position: int) -> Iterator[Sequence[Launch]]:
        """A step's launches, set for one token of each row at a position, on whatever is there."""
        self._check_present()
        rows = np.arange(tokens, dtype=np.int32)
        for row in rows.tolist():
            self._rows.begin(Slice(row, 0, np.zeros(1, np.int64)))
            self._places[row] = position, row
            self._slices[row] = row, 1, row, position
        with self._losing():
            cl.enqueue_copy(self._queue, self._buffers.places, self._places[:tokens])
            cl.enqueue_copy(self._queue, self._buffers.slices, self._slices[:tokens])
            cl.enqueue_copy(self._queue, self._buffers.wanted, rows)
            self._queue.finish()
            yield (*self._before, *self._after)
            self._queue.finish()

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """A failure of the device is the end: what is on it can no longer be relied on."""
        try:
            yield
        except cl.Error as error:
            if isinstance(error, cl.MemoryError) and self._still_answers():
                raise LaneError(f"the device's memory is full ({error})") from error
            self._left = self._context.lost = True
            raise LaneLost(f"the device failed ({error}); start the server again") from error

    def _still_answers(self) -> bool:
        """Whether the device does anything: lost ones, too, are said to be out of resources."""
        try:
            cl.enqueue_copy(self._queue, np.empty(1, np.float32), self._buffers.logits)
        except cl.Error:
            return False
        return True

    def _check_present(self) -> None:
        if self._left:
            raise LaneLost("the executor's block was left, or its device lost; its memory is gone")

    def _check_draw(self, draw: Draw | None) -> None:
        if draw is None:
            return
        if self._picker is None:
            raise LaneError("this executor was not compiled to pick tokens")
        self._picker.check(draw)

    def _compute(self, run: Run, logits: Float32) -> int:
        """Computes a run; returns how many of its tokens have their logits in ``logits`` now."""
        last_position = self._put_tokens(run)
        wanted, draws = _wanted_of(run)
        self._put(self._buffers.wanted, wanted[:MOST_LOGITS])
        extent = Extent(run.tokens, len(run.slices), last_position)
        for launch in self._before:
            launch.enqueue(self._queue, extent)
        read = len(wanted) - len(draws)
        for first in range(0, len(wanted), MOST_LOGITS):
            chunk = wanted[first : first + MOST_LOGITS]
            if first:
                self._put(self._buffers.wanted, chunk)
            for launch in self._after:
                launch.enqueue(self._queue, Extent(len(chunk)))
            out = logits[first : min(first + len(chunk), read)]
            if len(out):
                cl.enqueue_copy(self._queue, out, self._buffers.logits, is_blocking=True)
            drawn = draws[max(first - read, 0) : max(first + len(chunk) - read, 0)]
            if drawn:
                assert self._picker is not None
                self._picked += self._picker.pick(len(out), drawn)
        self._queue.finish()
        self._copies.clear()
        return read

    def _put(self, buffer: cl.Buffer, values: npt.NDArray[Any], at: int = 0) -> None:
        """Begins to copy values, which stay as they are until the queue is finished."""
        if values.size:
            copy = cl.enqueue_copy(self._queue, buffer, values, dst_offset=at, is_blocking=False)
            # An event that is dropped before waits for its copy, and all threads with it.
            self._copies.append(copy)

    def _put_tokens(self, run: Run) -> int:
        """Embeddings, positions and rows of a run's tokens; returns the last position of any."""
        count, width = run.tokens, self._plan.begin.out.width
        first = last_position = 0
        for index, each in enumerate(run.slices):
            end, stop = first + len(each.tokens), each.start + len(each.tokens)
            self._slices[index] = first, len(each.tokens), each.row, each.start
            self._places[first:end, 0] = np.arange(each.start, stop)
            self._places[first:end, 1] = each.row
            last_position = max(last_position, stop - 1)
            first = end
        tokens = np.concatenate([each.tokens for each in run.slices])
        rows = self._embeddings[:count, :width]
        np.multiply(self._embedding.rows_to_float32(tokens), self._scale, out=rows)
        put_features(run.slices, rows)
        self._put(self._buffers.places, self._places[:count])
        if not self.rewinds:
            self._put(self._buffers.slices, self._slices[: len(run.slices)])
        self._put(self._buffers.arena, self._embeddings[:count], self._embeddings_at)
        return last_position


def _wanted_of(run: Run) -> tuple[npt.NDArray[np.int32], list[Draw]]:
    """Which of a run's tokens have their logits computed, ``[wanted]`` int32, and what of them.

    Those whose logits are asked for come first, after them those that the draws are for.
    """
    wanted: list[int] = []
    drawn: list[int] = []
    draws: list[Draw] = []
    end = 0
    for each in run.slices:
        end += len(each.tokens)
        if each.draw is None:
            wanted.extend(range(end - each.wanted, end))
        else:
            drawn.append(end - 1)
            draws.append(each.draw)
    return np.array(wanted + drawn, np.int32), draws
