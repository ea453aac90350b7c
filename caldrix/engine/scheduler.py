"""Who waits, who runs, and what the next step computes. No IO and no clock: a plain machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as SequenceOf

from attrs import frozen

from caldrix.engine.errors import QueueFull
from caldrix.engine.sequence import Sequence
from caldrix.errors import CaldrixError
from caldrix.models.lane import Slice

PREFILL_SLICE = 512
"""Prompt tokens computed in one step, so that leaving and joining never wait for a long prompt."""


@frozen
class Work:
    """One sequence's part of a step."""

    sequence: Sequence
    slice: Slice

    def advance(self, pick: int | CaldrixError | None) -> None:
        """Records what became of it: the token picked, none if none was wanted, or a failure.

        Nothing is recorded of a sequence that has ended meanwhile.
        """
        if self.sequence.ended:
            return
        if isinstance(pick, CaldrixError):
            self.sequence.fail(pick)
        else:
            self.sequence.advance(self.slice, pick)


class Scheduler:
    """First come, first served, over a fixed number of rows."""

    def __init__(self, rows: int, queue_depth: int) -> None:
        self._free_rows = list(reversed(range(rows)))
        self._most = rows + queue_depth
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    @property
    def running(self) -> int:
        """Sequences that hold a row and have not ended."""
        return sum(not sequence.ended for sequence in self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a row and have not ended."""
        return sum(not sequence.ended for sequence in self._waiting)

    def admit(self, sequence: Sequence) -> None:
        """Queues a sequence; those that ended take no place. Raises QueueFull."""
        if self.running + self.waiting >= self._most:
            raise QueueFull
        self._waiting.append(sequence)

    def turn_over(self) -> None:
        """Takes rows and places from sequences that ended, and gives rows to those who wait.

        Only between steps: a row in a step under way must not change hands.
        """
        for sequence in [sequence for sequence in self._running if sequence.ended]:
            assert sequence.row is not None
            self._free_rows.append(sequence.row)
            sequence.row = None
            self._running.remove(sequence)
        for sequence in [sequence for sequence in self._waiting if sequence.ended]:
            self._waiting.remove(sequence)
        while self._free_rows and self._waiting:
            self._start(self._waiting.popleft())

    def plan(self) -> SequenceOf[Work]:
        """The next step: a slice of every running sequence."""
        return [Work(sequence, sequence.next_slice(PREFILL_SLICE)) for sequence in self._running]

    def everyone(self) -> SequenceOf[Sequence]:
        """All sequences that hold a row or wait for one."""
        return [*self._running, *self._waiting]

    def _start(self, sequence: Sequence) -> None:
        sequence.row = self._free_rows.pop()
        self._running.append(sequence)
