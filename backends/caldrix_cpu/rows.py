"""The account of an executor's rows: what each holds, and where a slice can go on from.

What they hold lies in memory of some kind, which alone knows how to copy it: arrays of this
machine (`caldrix_cpu.row_arrays`) or a device's buffers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from attrs import frozen

from caldrix.models.lane import LaneError, Slice, Snapshot

Kept = TypeVar("Kept")
"""What a kind of memory keeps for a snapshot."""


class RowMemory(Protocol[Kept]):
    """The memory of all rows: their caches' and states' contents."""

    def copy(self, source: int, target: int, length: int) -> None:
        """Puts what ``source`` has of its first ``length`` positions into ``target``."""
        ...

    def keep(self, row: int, length: int) -> Kept:
        """A copy of it in memory of its own."""
        ...

    def put_back(self, kept: Kept, row: int, length: int) -> None:
        """Puts such a copy, of so many positions, into ``row``."""
        ...

    def kept_bytes(self, length: int) -> int:
        """Bytes of such a copy."""
        ...


@frozen
class Ring:
    """A layer with a window that keeps less than the context: later positions overwrite others."""

    positions: int
    window: int


@frozen(eq=False)
class RowSnapshot(Generic[Kept]):
    """See `caldrix.models.lane.Snapshot`."""

    length: int
    reached: int
    """The end of the positions that the row's rings were written to."""
    kept: Kept


class Rows(Generic[Kept]):
    """The account of what was written to each row's caches and states.

    A row with ``states`` goes on from the last position it holds, and from no earlier one. Without
    ``reusable`` a row keeps something that is in no memory: nothing is resumed.
    """

    def __init__(
        self,
        memory: RowMemory[Kept],
        rows: int,
        *,
        rings: Iterable[Ring] = (),
        states: bool = False,
        reusable: bool = True,
    ) -> None:
        self._memory = memory
        self._rings = frozenset(rings)
        self._states = states
        self._reusable = reusable
        self._held = [0] * rows
        """Positions of the sequence that a row holds."""
        self._reached = [0] * rows
        """The end of the positions that a row's rings were written to since it last began."""

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
        ring = self._overwritten(row, start)
        if ring is not None:
            raise LaneError(
                f"row {row} was computed up to position {self._reached[row]}, and a layer keeps "
                f"{ring.positions} positions: it cannot go on from {start}"
            )

    def begin(self, part: Slice) -> None:
        """A slice is about to be written: until its `end`, its row holds nothing usable.

        What it overwrites stays lost until the row begins anew.
        """
        end = part.start + len(part.tokens)
        self._reached[part.row] = max(end, self._reached[part.row]) if part.start else end
        self._held[part.row] = 0

    def end(self, part: Slice) -> None:
        """A slice is computed."""
        self._held[part.row] = part.start + len(part.tokens)

    def resumable(self, row: int, length: int) -> int:
        """See `caldrix.models.lane.Executor`. Raises LaneError for a row that is not there."""
        self._check_row(row)
        # The further on, the less a window looks back at: either this is resumable or nothing.
        most = min(length, self._held[row])
        if not self._reusable or most <= 0 or self._overwritten(row, most) is not None:
            return 0
        if self._states and most < self._held[row]:
            return 0
        return most

    def copy(self, source: int, target: int, length: int) -> None:
        """See `caldrix.models.lane.Executor`."""
        self._check_row(target)
        self._check_copied(source, length)
        if source == target:
            return
        self._held[target] = 0
        self._memory.copy(source, target, length)
        self._held[target], self._reached[target] = length, self._reached[source]

    def snapshot(self, row: int, length: int) -> RowSnapshot[Kept]:
        """See `caldrix.models.lane.Executor`."""
        self._check_copied(row, length)
        return RowSnapshot(length, self._reached[row], self._memory.keep(row, length))

    def snapshot_bytes(self, length: int) -> int:
        """See `caldrix.models.lane.Executor`."""
        return self._memory.kept_bytes(length)

    def restore(self, snapshot: Snapshot, row: int) -> None:
        """See `caldrix.models.lane.Executor`."""
        assert isinstance(snapshot, RowSnapshot)
        self._check_row(row)
        self._held[row] = 0
        self._memory.put_back(snapshot.kept, row, snapshot.length)
        self._held[row], self._reached[row] = snapshot.length, snapshot.reached

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

    def _overwritten(self, row: int, start: int) -> Ring | None:
        """A ring where later positions overwrote what a query at ``start`` sees."""
        reached = self._reached[row]
        for ring in self._rings:
            if start and reached - ring.positions > max(0, start - ring.window):
                return ring
        return None
