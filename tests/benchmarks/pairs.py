"""Rounds that time two sides in turn, and the tables of what came out."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from attrs import frozen
from rich.console import Console
from rich.table import Table

from caldrix.bench.bandwidth import MemoryReader
from caldrix.bench.cases import Case, Timing, rate
from caldrix.bench.report import GIGA, bytes_read
from caldrix.bench.rounds import measure
from caldrix.bench.subject import LaneSubject, Subject

_MOMENT = 0.02
_LONGEST_WAIT = 1.0


@frozen
class Pair:
    """One round of a case on both sides."""

    bandwidth: float
    ours: Timing
    theirs: Timing

    @property
    def ratio(self) -> float:
        """Our speed over theirs."""
        return self.theirs.seconds / self.ours.seconds


def interleave(
    ours: Subject,
    theirs: Subject,
    cases: Sequence[Case],
    reader: MemoryReader,
    rounds: int,
) -> list[list[Pair]]:
    """A list of pairs for each case. Who comes first changes from round to round."""
    pairs: list[list[Pair]] = [[] for _ in cases]
    with Console(stderr=True).status("warming up") as status:
        for number in range(1 + rounds):
            bandwidth = reader.measure().best
            for case, kept in zip(cases, pairs, strict=True):
                timings = {}
                for subject in (ours, theirs) if number % 2 else (theirs, ours):
                    if number:
                        status.update(f"round {number} of {rounds}: {case.name}, {subject.name}")
                    _settle()
                    timings[subject is ours] = case.run(subject)
                if number:
                    kept.append(Pair(bandwidth, timings[True], timings[False]))
    return pairs


def _settle() -> None:
    """Waits until no worker thread of the other side spins any more, waiting for work."""
    latest = time.monotonic() + _LONGEST_WAIT
    while time.monotonic() < latest:
        used = time.process_time()
        time.sleep(_MOMENT)
        if time.process_time() - used < _MOMENT / 10:
            return


def print_pairs(
    console: Console,
    title: str,
    ours: LaneSubject,
    theirs: Subject,
    cases: Sequence[Case],
    pairs: Sequence[Sequence[Pair]],
) -> None:
    """What `interleave` gave: medians of both sides, the median ratio and the worst round's."""
    table = _table("ours", "theirs", "ratio", "worst round", "we read", "memory")
    table.title = f"{title}: {ours.name} beside {theirs.name}, tokens/s"
    for case, rounds in zip(cases, pairs, strict=True):
        ratios = [pair.ratio for pair in rounds]
        table.add_row(
            _label(case),
            f"{median(rate(case, pair.ours) for pair in rounds):.1f}",
            f"{median(rate(case, pair.theirs) for pair in rounds):.1f}",
            f"{median(ratios):.2f}",
            f"{min(ratios):.2f}",
            _read(ours, case, [pair.ours for pair in rounds]),
            _gigabytes(median(pair.bandwidth for pair in rounds)),
        )
    console.print(table)


def print_alone(
    console: Console,
    title: str,
    ours: LaneSubject,
    cases: Sequence[Case],
    reader: MemoryReader,
    count: int,
) -> None:
    """Our side's rounds, where there is no other."""
    with Console(stderr=True).status("measuring"):
        rounds = measure(ours, cases, reader, count)
    table = _table("ours", "we read", "memory")
    table.title = f"{title}: {ours.name} alone, tokens/s"
    for index, case in enumerate(cases):
        timings = [each.timings[index] for each in rounds]
        table.add_row(
            _label(case),
            f"{median(rate(case, timing) for timing in timings):.1f}",
            _read(ours, case, timings),
            _gigabytes(median(each.bandwidth.best for each in rounds)),
        )
    console.print(table)


def _table(*headings: str) -> Table:
    table = Table("", box=None, pad_edge=False, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _label(case: Case) -> str:
    return f"{case.name} {case.tokens}" if case.depth == 0 else f"{case.name} at {case.depth}"


def _read(ours: LaneSubject, case: Case, timings: Sequence[Timing]) -> str:
    """Weights that we read while decoding; prefill isn't bound by that."""
    if case.depth == 0:
        return ""
    if ours.bytes_read_per_token is None:
        return "not known"
    step_bytes = ours.bytes_read_per_token
    return _gigabytes(median(bytes_read(case, timing, step_bytes) for timing in timings))


def _gigabytes(rate: float) -> str:
    return f"{rate / GIGA:.1f} GB/s"
