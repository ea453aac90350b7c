"""What an executor's rows hold: their keys, values and states on the device.

A layer with a window keeps its window, and beside it as much as one run of tokens writes before
the first of them attends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count

import pyopencl as cl
from attrs import frozen

from caldrix.models.program import Convolve, DeltaRule, KvCache
from caldrix_cpu.rows import Ring, Rows
from caldrix_cpu.runs import MOST_TOKENS
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.context import Context

VALUE_BYTES = {"f16": 2, "f32": 4}


@frozen
class CacheLayout:
    """The sizes of one layer's cache; ``kernels/cache.cl`` says how it lies."""

    kv_heads: int
    head_dim: int
    positions: int
    """That a row holds, in whole tiles: position ``p`` is at ``p % positions``."""
    value_bytes: int
    window: int | None = None
    """If it holds less than the context."""

    @classmethod
    def of(cls, cache: KvCache, context: int, kv_dtype: str) -> CacheLayout:
        """For rows of ``context`` positions."""
        positions, window = padded(context, TILE_ROWS), None
        if cache.window is not None:
            ring = padded(cache.window + MOST_TOKENS, TILE_ROWS)
            if ring < positions:
                positions, window = ring, cache.window
        value_bytes = VALUE_BYTES[kv_dtype]
        return cls(cache.kv_heads, cache.head_dim, positions, value_bytes, window)

    @property
    def dim(self) -> int:
        """Columns of a head, in whole tiles."""
        return padded(self.head_dim, TILE_ROWS)

    @property
    def position_bytes(self) -> int:
        """Bytes of a position of one head's keys, or of its values."""
        return self.dim * self.value_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's keys, or of its values."""
        return self.kv_heads * self.positions * self.position_bytes


@frozen(eq=False)
class Cache:
    """One layer's keys and values on the device, each ``row_bytes`` for each row."""

    layout: CacheLayout
    keys: cl.Buffer
    values: cl.Buffer


@frozen(eq=False)
class State:
    """An operation's state on the device, ``row_bytes`` for each row."""

    row_bytes: int
    buffer: cl.Buffer


def state_bytes(operation: Convolve | DeltaRule) -> int:
    """Bytes of one row's state, as the operation's kernel lays it out."""
    if isinstance(operation, Convolve):
        return 4 * (operation.taps - 1) * operation.x.width
    value_dim = operation.v.width // operation.heads
    key_dim = operation.k.width // operation.key_heads
    return 4 * operation.heads * padded(value_dim, TILE_ROWS) * key_dim


@frozen
class _Piece:
    """A run of bytes that a row has of its first positions, and where a copy has them."""

    buffer: cl.Buffer
    at: int
    size: int
    copy: int
    """Which of the copy's buffers: one for each that rows lie in."""
    within: int


class RowBuffers:
    """Caches and states in a device's buffers; see `caldrix_cpu.rows.RowMemory`."""

    def __init__(self, caches: Sequence[Cache], states: Sequence[State], context: Context) -> None:
        self._caches = caches
        self._states = states
        self._context = context

    def copy(self, source: int, target: int, length: int) -> None:
        """Within the device."""
        for old, new in zip(
            self._pieces(source, length), self._pieces(target, length), strict=True
        ):
            self._move(old.buffer, old.at, new.buffer, new.at, old.size)
        self._context.queue.finish()

    def keep(self, row: int, length: int) -> Sequence[cl.Buffer]:
        """Within the device, in buffers of their own, whose memory goes with them.

        Raises LaneError if there is none.
        """
        pieces = list(self._pieces(row, length))
        sizes = Counter[int]()
        for piece in pieces:
            sizes[piece.copy] += piece.size
        kept = [self._context.allocate_more(sizes[copy]) for copy in range(len(sizes))]
        for piece in pieces:
            self._move(piece.buffer, piece.at, kept[piece.copy], piece.within, piece.size)
        self._context.queue.finish()
        return kept

    def put_back(self, kept: Sequence[cl.Buffer], row: int, length: int) -> None:
        """Within the device."""
        for piece in self._pieces(row, length):
            self._move(kept[piece.copy], piece.within, piece.buffer, piece.at, piece.size)
        self._context.queue.finish()

    def kept_bytes(self, length: int) -> int:
        """What such buffers take."""
        return sum(piece.size for piece in self._pieces(0, length))

    def _pieces(self, row: int, length: int) -> Iterator[_Piece]:
        """Numbered from 0, if there are any."""
        copies = count()
        for cache in self._caches:
            layout = cache.layout
            head_bytes = layout.positions * layout.position_bytes
            # Up to the ring's size, each position's place is its number.
            size = min(layout.positions, padded(length, TILE_ROWS)) * layout.position_bytes
            for buffer in (cache.keys, cache.values) if size else ():
                copy = next(copies)
                for head in range(layout.kv_heads):
                    at = row * layout.row_bytes + head * head_bytes
                    yield _Piece(buffer, at, size, copy, head * size)
        for state in self._states if length else ():
            yield _Piece(state.buffer, row * state.row_bytes, state.row_bytes, next(copies), 0)

    def _move(self, source: cl.Buffer, at: int, target: cl.Buffer, to: int, size: int) -> None:
        cl.enqueue_copy(
            self._context.queue, target, source, src_offset=at, dst_offset=to, byte_count=size
        )


def rows_on_device(
    caches: Sequence[Cache], states: Sequence[State], rows: int, context: Context
) -> Rows[Sequence[cl.Buffer]]:
    """The account of rows whose caches and states are these."""
    rings = [
        Ring(layout.positions, layout.window)
        for layout in (cache.layout for cache in caches)
        if layout.window is not None
    ]
    memory = RowBuffers(caches, states, context)
    return Rows(memory, rows, rings=rings, states=bool(states))
