"""What an executor's rows hold: their keys, values and states on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyopencl as cl
from attrs import frozen

from caldrix.models.lane import LaneError, Slice, Snapshot
from caldrix.models.program import Convolve, DeltaRule, KvCache
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.context import Context

VALUE_BYTES = {"f16": 2, "f32": 4}


@frozen
class CacheLayout:
    """The sizes of one layer's cache; ``kernels/cache.cl`` says how it lies."""

    kv_heads: int
    head_dim: int
    positions: int
    """That a row holds, in whole tiles; a window saves none."""
    value_bytes: int

    @classmethod
    def of(cls, cache: KvCache, context: int, kv_dtype: str) -> CacheLayout:
        """For rows of ``context`` positions."""
        return cls(
            cache.kv_heads, cache.head_dim, padded(context, TILE_ROWS), VALUE_BYTES[kv_dtype]
        )

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


@frozen(eq=False)
class RowSnapshot:
    """See `caldrix.models.lane.Snapshot`."""

    length: int
    memory: cl.Buffer


@frozen
class _Piece:
    """A run of bytes that a row has of its first positions, and where a snapshot has them."""

    buffer: cl.Buffer
    at: int
    size: int
    within: int


class Rows:
    """The account of what was written to each row's caches and states, and copies of it.

    A row with states goes on from the last position it holds, and from no earlier one.
    """

    def __init__(
        self, caches: Sequence[Cache], states: Sequence[State], rows: int, context: Context
    ) -> None:
        self._caches = caches
        self._states = states
        self._context = context
        self._held = [0] * rows
        """Positions of the sequence that a row holds."""

    def check(self, row: int, start: int) -> None:
        """Raises LaneError if a slice of ``row`` can't begin at ``start``."""
        self._check_row(row)
        if not 0 <= start <= self._held[row]:
            raise LaneError(
                f"row {row} holds {self._held[row]} positions: it cannot go on from {start}"
            )
        if self._states and start not in (0, self._held[row]):
            raise LaneError(
                f"row {row} holds {self._held[row]} positions in states that cannot go back: it "
                f"goes on from there or begins anew, but not from {start}"
            )

    def begin(self, part: Slice) -> None:
        """A slice is about to be written: until its `end`, its row holds nothing usable."""
        self._held[part.row] = 0

    def end(self, part: Slice) -> None:
        """A slice is computed."""
        self._held[part.row] = part.start + len(part.tokens)

    def resumable(self, row: int, length: int) -> int:
        """See `caldrix.models.lane.Executor`. Raises LaneError for a row that is not there."""
        self._check_row(row)
        most = max(0, min(length, self._held[row]))
        return 0 if self._states and most < self._held[row] else most

    def copy(self, source: int, target: int, length: int) -> None:
        """See `caldrix.models.lane.Executor`."""
        self._check_row(target)
        self._check_copied(source, length)
        if source == target:
            return
        self._held[target] = 0
        for old, new in zip(
            self._pieces(source, length), self._pieces(target, length), strict=True
        ):
            self._move(old.buffer, old.at, new.buffer, new.at, old.size)
        self._context.queue.finish()
        self._held[target] = length

    def snapshot(self, row: int, length: int) -> RowSnapshot:
        """See `caldrix.models.lane.Executor`."""
        self._check_copied(row, length)
        size = max(1, self.snapshot_bytes(length))
        memory = cl.Buffer(self._context.handle, cl.mem_flags.READ_WRITE, size)
        for piece in self._pieces(row, length):
            self._move(piece.buffer, piece.at, memory, piece.within, piece.size)
        self._context.queue.finish()
        return RowSnapshot(length, memory)

    def snapshot_bytes(self, length: int) -> int:
        """See `caldrix.models.lane.Executor`."""
        return sum(piece.size for piece in self._pieces(0, length))

    def restore(self, snapshot: Snapshot, row: int) -> None:
        """See `caldrix.models.lane.Executor`."""
        assert isinstance(snapshot, RowSnapshot)
        self._check_row(row)
        self._held[row] = 0
        for piece in self._pieces(row, snapshot.length):
            self._move(snapshot.memory, piece.within, piece.buffer, piece.at, piece.size)
        self._context.queue.finish()
        self._held[row] = snapshot.length

    def _pieces(self, row: int, length: int) -> Iterator[_Piece]:
        within = 0
        for cache in self._caches:
            layout = cache.layout
            head_bytes = layout.positions * layout.position_bytes
            size = padded(length, TILE_ROWS) * layout.position_bytes
            for buffer in (cache.keys, cache.values) if size else ():
                for head in range(layout.kv_heads):
                    yield _Piece(buffer, row * layout.row_bytes + head * head_bytes, size, within)
                    within += size
        for state in self._states if length else ():
            yield _Piece(state.buffer, row * state.row_bytes, state.row_bytes, within)
            within += state.row_bytes

    def _move(self, source: cl.Buffer, at: int, target: cl.Buffer, to: int, size: int) -> None:
        cl.enqueue_copy(
            self._context.queue, target, source, src_offset=at, dst_offset=to, byte_count=size
        )

    def _check_copied(self, row: int, length: int) -> None:
        most = self.resumable(row, length)
        if not 0 <= length <= most:
            raise LaneError(
                f"{length} positions of row {row} cannot be copied: a slice could go on from "
                f"{most} of them"
            )

    def _check_row(self, row: int) -> None:
        if not 0 <= row < len(self._held):
            raise LaneError(f"there is no row {row}: rows are 0 to {len(self._held) - 1}")
