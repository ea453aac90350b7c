"""Who waits, who runs, and what the next step computes. No IO and no clock: a plain machine.

A step computes one token of every sequence that has its prompt behind it, and beside them a slice
of prompts, a small one where others wait for the step's end or may come to. Half of it goes to the
prompt that came first and the rest to the shortest, so that neither can hold up the other.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from itertools import count

from attrs import frozen

from caldrix.engine.errors import QueueFull
from caldrix.engine.rows import LEAST_SHARED, Rows, common_prefix
from caldrix.engine.sequence import Sequence
from caldrix.models.lane import PrefillSizes, Slice


@frozen(eq=False)
class Work:
    """One sequence's part of a step."""

    sequence: Sequence
    slice: Slice
    draft: tuple[int, ...] = ()
    """The last tokens of the slice, if they are guesses."""


class Scheduler:
    """First come, first served, over a fixed number of rows."""

    def __init__(
        self, rows: Rows, working_rows: int, queue_depth: int, prefill: PrefillSizes
    ) -> None:
        self._rows = rows
        self._most = working_rows + queue_depth
        self._prefill = prefill
        self._prefill_tokens = prefill.alone if working_rows == 1 else prefill.shared
        self._arrivals = count()
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self.lock = threading.Lock()
        """Held by whoever calls a method here, or makes a sequence advance or end; but not for
        `plan`, which copies rows, and takes it for as long as it moves a sequence."""

    @property
    def running(self) -> int:
        """Sequences that hold a row and have not ended."""
        return sum(not sequence.ended for sequence in self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a row and have not ended."""
        return sum(not sequence.ended for sequence in self._waiting)

    @property
    def positions(self) -> int:
        """Positions that the running sequences' rows hold."""
        return sum(
            sequence.row.length
            for sequence in self._running
            if sequence.row is not None and not sequence.ended
        )

    def admit(self, sequence: Sequence) -> None:
        """Queues a sequence; those that ended take no place. Raises QueueFull."""
        self.check_room()
        sequence.arrival = next(self._arrivals)
        self._waiting.append(sequence)

    def check_room(self) -> None:
        """Raises QueueFull if there is no place for one more sequence."""
        if self.running + self.waiting >= self._most:
            raise QueueFull

    def turn_over(self) -> None:
        """Takes rows and places from sequences that ended.

        Only between steps: a row in a step under way must not change hands.
        """
        for sequence in [sequence for sequence in self._running if sequence.ended]:
            assert sequence.row is not None
            self._rows.give_back(sequence.row)
            sequence.row = None
            self._running.remove(sequence)
        for sequence in [sequence for sequence in self._waiting if sequence.ended]:
            self._waiting.remove(sequence)

    def plan(self) -> SequenceOf[Work]:
        """The next step; those who wait are given rows as they come to have a part in it.

        Only the thread that turns over may call it.
        """
        self._rows.drop_abandoned()
        for sequence in self._running:
            if sequence.isolated:
                return [self._work(sequence, self._prefill.alone)]
        shares = {sequence: 1 for sequence in self._running if sequence.decoding}
        shares |= self._share_prefill()
        return [self._work(sequence, share) for sequence, share in shares.items()]

    def _work(self, sequence: Sequence, share: int) -> Work:
        """A sequence's part of a step; what it has to keep is kept before it goes on from there."""
        row, kept = sequence.row, sequence.kept
        if kept is not None and kept.due:
            assert row is not None
            if row.length == kept.length:
                self._rows.keep(row, kept)
        return Work(sequence, sequence.next_slice(share))

    def everyone(self) -> SequenceOf[Sequence]:
        """All sequences that hold a row or wait for one."""
        return [*self._running, *self._waiting]

    def _share_prefill(self) -> dict[Sequence, int]:
        """How many tokens of its prompt each sequence computes next."""
        candidates = [sequence for sequence in self._running if not sequence.decoding]
        candidates += self._next_in_line()
        candidates.sort(key=lambda sequence: sequence.arrival)
        first = next((each for each in candidates if not self._should_wait(each)), None)
        if first is None:
            return {}
        others = [sequence for sequence in candidates if sequence is not first]
        shares: dict[Sequence, int] = {}
        left = self._prefill_tokens

        def give(sequence: Sequence, most: int) -> None:
            nonlocal left
            if sequence.row is None:
                self._start(sequence)
            share = min(most, sequence.missing - shares.get(sequence, 0))
            if share:
                shares[sequence] = shares.get(sequence, 0) + share
                left -= share

        give(first, left // 2 if others else left)
        for sequence in sorted(others, key=lambda each: each.missing):
            if left and not self._should_wait(sequence):
                give(sequence, left)
        give(first, left)
        return shares

    def _next_in_line(self) -> Iterator[Sequence]:
        """Those who could be given a row now."""
        return (self._waiting[place] for place in range(min(self._rows.free, len(self._waiting))))

    def _should_wait(self, sequence: Sequence) -> bool:
        """Whether somebody is just computing what it begins with, so that it can have a copy."""
        return (
            sequence.row is None
            and sequence.features is None
            and self._rows.shares_prefills
            and any(
                common_prefix(sequence.tokens, other.tokens)
                >= (0 if other.row is None else other.row.length) + LEAST_SHARED
                for other in self._running
                if not other.decoding and other.features is None
            )
        )

    def _start(self, sequence: Sequence) -> None:
        # If no row can be given, it stays where it is found when the engine ends.
        if sequence.features is None:
            row = self._rows.take(sequence.tokens, sequence.kept)
        else:
            row = self._rows.take_private(sequence.tokens)
        with self.lock:
            sequence.start(row)
            self._waiting.remove(sequence)
            self._running.append(sequence)
