"""Where a plan's values lie, and where a small step's threads must meet.

Both follow from what each item of the plan reads and writes, whatever it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

from attrs import define, field, frozen

from caldrix.models.program import Value

_LANES = 16


@frozen
class Place:
    """Columns of an arena, in float32."""

    column: int
    width: int
    local: bool

    @property
    def reference(self) -> int:
        """As a tape writes it."""
        return 2 * 4 * self.column + self.local


@frozen
class Access:
    """What an item does to memory."""

    reads: tuple[Value, ...]
    writes: tuple[Value, ...]
    divided: bool = False
    """Whether threads divide its columns, so that each needs what the others wrote."""
    sums_up: bool = False
    """Whether it sums up in the memory that all such items share."""
    waits: bool = False
    """Whether threads must meet before it in any case."""


@frozen
class Placement:
    """Every value's columns, and which items threads meet before."""

    places: Mapping[Value, Place]
    waits: Sequence[bool]
    shared_width: int
    local_width: int


def place(begin: Value, accesses: Sequence[Access]) -> Placement:
    """Gives ``begin``, which is there before the first item, and all that items write a place.

    Columns are used again once their value is no longer read, and not before the threads have met
    since: a thread that is behind may still be reading.
    """
    waits = _waits(accesses)
    phases = list(accumulate(map(int, waits)))
    last_read = {
        value: phase
        for access, phase in zip(accesses, phases, strict=True)
        for value in access.reads
    }
    shared, local = _Columns(), _Columns()
    places = _side_by_side((begin,), shared, -1, last_read, local=False)
    for access, phase in zip(accesses, phases, strict=True):
        columns = shared if access.divided else local
        places |= _side_by_side(access.writes, columns, phase, last_read, local=not access.divided)
    return Placement(places, waits, shared.width, local.width)


def _waits(accesses: Sequence[Access]) -> list[bool]:
    """For each item, whether it needs what other threads may not have written yet."""
    unmet: set[Value] = set()
    summing = False
    found = []
    for access in accesses:
        waits = (
            access.waits
            or not unmet.isdisjoint(access.reads)
            # Slower threads may still be reading the sums.
            or (access.sums_up and summing)
        )
        if waits:
            unmet.clear()
            summing = False
        found.append(waits)
        summing = summing or access.sums_up
        if access.divided:
            unmet.update(access.writes)
    return found


def _side_by_side(
    values: Sequence[Value],
    columns: _Columns,
    phase: int,
    last_read: Mapping[Value, int],
    *,
    local: bool,
) -> dict[Value, Place]:
    """Places values as a product of several projections writes them."""
    widths = [-(-value.width // _LANES) * _LANES for value in values]
    until = max((last_read.get(value, phase) for value in values), default=phase)
    column = columns.take(sum(widths), phase, until)
    places = {}
    for value, width in zip(values, widths, strict=True):
        places[value] = Place(column, width, local)
        column += width
    return places


@define
class _Columns:
    """An arena's columns, given out first come, first served."""

    width: int = 0
    _taken: list[tuple[int, int, int]] = field(factory=list)
    """Column, width and the phase of the last reading."""

    def take(self, width: int, phase: int, until: int) -> int:
        """The first gap of that width among values still read in ``phase``."""
        self._taken = [taken for taken in self._taken if taken[2] >= phase]
        column = 0
        for start, size, _ in sorted(self._taken):
            if start - column >= width:
                break
            column = max(column, start + size)
        self._taken.append((column, width, until))
        self.width = max(self.width, column + width)
        return column
