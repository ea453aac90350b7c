"""How many threads to compute each step with, learned from how long the steps take.

The threads of a step wait for one another in spin barriers, so a step is as slow as its slowest
thread: one busy process beside ours can make two threads slower than one. Nothing tells of such a
neighbour but the time that steps take. `ThreadChoice` begins with all threads, looks at fewer once
steps are clearly slower than they were, keeps what is fastest, and while it holds threads back
looks now and then whether they are of use again.

It is a machine without a clock: steps of known durations go in, counts come out. Steps come in
kinds, each with a choice of its own, and undisturbed steps of one kind take about the same time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median

from attrs import define, field

_MARGIN = 0.95
"""Another count must take less than this part of the time to be preferred."""
_SUSPICIOUS = 1.3
"""Recent steps that take this many times as long as the fastest ones may have a neighbour."""
_HOPELESS = 1.9
"""Where fewer threads take this many times as long, still fewer are not looked at."""
_RECENT = 5
_EVERY_COUNT = 4
"""Up to so many threads each smaller count is a candidate, and beyond mostly halves."""

_FIRST_LOOK_DOWN, _NEXT_LOOK_DOWN = 8, 256
"""Steps with all threads after which fewer are looked at without any suspicion."""
_LOOK_UP = 24
"""Steps until more threads are looked at, doubled with each look in vain …"""
_LONGEST_PAUSE = 0.5
"""… up to these seconds, so that a neighbour's end is soon seen …"""
_SHORTEST_PAUSE = 8
"""… or to these steps where steps are long, as one in vain may take much longer."""
_CLIMB = 2
"""Steps until still more threads are looked at, once more were of use."""
_RELAPSE = 1.0
"""A neighbour that comes back within these seconds was only pausing."""


@define
class _Trial:
    """A look at another count of threads, for a few steps."""

    rung: int
    wins: int
    """Steps clearly faster that decide for it."""
    losses: int
    """Steps not so that decide against it."""
    times: list[float] = field(factory=list)


def _look_up(rung: int) -> _Trial:
    # A neighbour's pauses make a step or two fast, and a slow one is costly.
    return _Trial(rung, wins=3, losses=1)


def _recent(times: Iterable[float] = ()) -> deque[float]:
    return deque(times, maxlen=_RECENT)


@define
class _Kind:
    """What is known of one kind of steps. Times are seconds; a rung is an index of the ladder."""

    ended: float
    """When the last trial ended, in seconds of steps of any kind."""
    rung: int = 0
    recent: deque[float] = field(factory=_recent)
    """The last steps with the count that is settled on."""
    fastest: float = math.inf
    trial: _Trial | None = None
    pause: int = _FIRST_LOOK_DOWN
    """Steps until the next trial."""
    look_up: int = _LOOK_UP
    """The pause before looking up, as stretched by looks in vain."""
    climbed: float = -math.inf
    """When more threads were last of use."""

    def typical(self) -> float:
        """What a step takes with the count that is settled on."""
        return median(self.recent)

    def suspicious(self) -> bool:
        """Whether all recent steps but one, and the last, are too slow to be undisturbed."""
        if len(self.recent) < _RECENT:
            return False
        second = sorted(self.recent)[1]
        return min(second, self.recent[-1]) > _SUSPICIOUS * self.fastest

    def pause_seconds(self) -> float:
        """The pause in seconds, bounded where threads are held back."""
        typical = self.typical()
        longest = max(_LONGEST_PAUSE, _SHORTEST_PAUSE * typical) if self.rung else math.inf
        return min(self.pause * typical, longest)

    def settled(self, seconds: float) -> None:
        """Takes in a step that was no trial."""
        self.recent.append(seconds)
        self.fastest = min(seconds, self.fastest)


class ThreadChoice:
    """Chooses the threads of each step. Each `choose` is followed by one `record`.

    A step that failed may be left out: the next `choose` stands in for it.
    """

    def __init__(self, most: int) -> None:
        """Between 1 and ``most`` threads. Raises ValueError for ``most`` under 1."""
        self._ladder = _ladder(most)
        self._kinds: dict[int, _Kind] = {}
        self._elapsed = 0.0

    def choose(self, kind: int) -> int:
        """Threads for the next step, of ``kind``."""
        known = self._kinds.get(kind)
        if known is None:
            known = self._kinds[kind] = _Kind(ended=self._elapsed)
        if known.trial is None:
            known.trial = self._due(known)
        return self._chosen(known)

    def record(self, kind: int, threads: int, seconds: float) -> None:
        """Takes in how long the step took. Raises ValueError if it was not chosen so."""
        known = self._kinds.get(kind)
        if known is None or threads != self._chosen(known):
            raise ValueError(f"a step of kind {kind} was not to run on {threads} threads")
        self._elapsed += seconds
        trial = known.trial
        if trial is None:
            known.settled(seconds)
            return
        trial.times.append(seconds)
        won = sum(time < _MARGIN * known.typical() for time in trial.times)
        if won == trial.wins:
            self._move(known, trial)
        elif len(trial.times) - won == trial.losses:
            self._stay(known, trial)

    def _chosen(self, known: _Kind) -> int:
        return self._ladder[known.rung if known.trial is None else known.trial.rung]

    def _due(self, known: _Kind) -> _Trial | None:
        """The trial that the next step begins, if any."""
        if not known.recent:
            return None
        if known.suspicious() and (trial := self._look_down(known.rung + 1, losses=2)):
            return trial
        if self._elapsed - known.ended < known.pause_seconds():
            return None
        return _look_up(known.rung - 1) if known.rung else self._look_down(1, losses=1)

    def _look_down(self, rung: int, losses: int) -> _Trial | None:
        return _Trial(rung, wins=2, losses=losses) if rung < len(self._ladder) else None

    def _move(self, known: _Kind, trial: _Trial) -> None:
        """Settles on the count that was looked at; going down, looks further."""
        down = trial.rung > known.rung
        if not down:
            known.climbed = self._elapsed
        elif self._elapsed - known.climbed < _RELAPSE:
            known.look_up *= 2
        else:
            known.look_up = _LOOK_UP
        known.rung = trial.rung
        known.recent = _recent(trial.times)
        known.fastest = min(trial.times)
        self._end(known, known.look_up if down else _CLIMB)
        if down:
            known.trial = self._look_down(known.rung + 1, losses=1)

    def _stay(self, known: _Kind, trial: _Trial) -> None:
        """Keeps the count that was settled on, or looks still further down."""
        if trial.rung < known.rung:
            known.look_up *= 2
            self._end(known, known.look_up)
            return
        if min(trial.times) < _HOPELESS * known.typical() and (
            further := self._look_down(trial.rung + 1, trial.losses)
        ):
            known.trial = further
            return
        if known.suspicious():
            # Such steps are the best to be had now, and a longer context may be all there is to it.
            known.fastest = known.typical()
            known.recent.clear()
        self._end(known, known.look_up)

    def _end(self, known: _Kind, pause: int) -> None:
        known.trial = None
        known.ended = self._elapsed
        known.pause = pause if known.rung else _NEXT_LOOK_DOWN


def _ladder(most: int) -> tuple[int, ...]:
    """The counts to choose from, the largest first."""
    if most < 1:
        raise ValueError(f"there is no computing with {most} threads")
    if most <= _EVERY_COUNT:
        return tuple(range(most, 0, -1))
    halves = (most >> shift for shift in range(1, most.bit_length()))
    return (most, most - 1, *halves)
