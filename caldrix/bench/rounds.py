"""Rounds: every case once, the memory before them; and what a number of rounds comes to."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from attrs import frozen

from caldrix.bench.bandwidth import Bandwidth, MemoryReader
from caldrix.bench.cases import Case, Timing
from caldrix.bench.subject import ReportsLaunches, Subject

Watch = Callable[[str], None]
"""Told what is about to be measured."""


@frozen
class Round:
    """What was measured close together, so that a machine's drift touches all of it alike."""

    bandwidth: Bandwidth
    timings: tuple[Timing, ...]
    """In the order of the cases."""
    enqueued: float | None = None
    """Seconds until a token's launches are enqueued, where the lane has launches."""


def measure(
    subject: Subject,
    cases: Sequence[Case],
    reader: MemoryReader,
    rounds: int,
    watch: Watch = lambda _: None,
    launching: ReportsLaunches | None = None,
) -> list[Round]:
    """The rounds, after one that warms up and doesn't count."""
    measured = []
    for _ in range(1 + rounds):
        watch("memory")
        bandwidth = reader.measure()
        timings = []
        for case in cases:
            watch(case.name)
            timings.append(case.run(subject))
        enqueued = None if launching is None else launching.enqueue_seconds()
        measured.append(Round(bandwidth, tuple(timings), enqueued))
    return measured[1:]


@frozen
class Spread:
    """What the rounds gave for one quantity."""

    median: float
    least: float
    most: float
    rounds: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value."""
        rounds = tuple(values)
        return cls(statistics.median(rounds), min(rounds), max(rounds), rounds)
