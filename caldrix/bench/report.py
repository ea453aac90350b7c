"""What the rounds of a model come to: its speeds, and what part of the memory's they use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import truediv

from attrs import frozen

from caldrix.bench.cases import Case, Timing, rate
from caldrix.bench.rounds import Round, Spread

GIGA = 1e9


@frozen
class Result:
    """One quantity over all rounds."""

    name: str
    """pp, ttft (time to first token), tg, or tg and the number of sequences."""
    unit: str
    tokens: int
    depth: int
    sequences: int
    value: Spread
    read: Spread | None
    """Weights read while decoding, GB/s; None where that isn't known, or isn't the bound."""
    read_share: Spread | None
    """That over the memory's best speed in the same round; None where the weights lie elsewhere."""


@frozen
class Report:
    """A whole run, as ``caldrix bench --json`` prints it."""

    model: str
    path: str
    lane: str
    dtype: str
    threads: int
    bytes_read_per_token: int | None
    device_memory: str | None
    """The device whose own memory the weights are read from; None for this machine's."""
    launches_per_token: int | None
    """Launches that a token's work is given to the device in; None for a lane without."""
    enqueue: Spread | None
    """Milliseconds until those are enqueued."""
    bandwidth: Spread
    """This machine's memory read as fast as it went in each round, GB/s."""
    bandwidth_median: Spread
    """That memory in each round's median pass, GB/s."""
    results: tuple[Result, ...]
    notes: tuple[str, ...]


def bandwidth(measured: Sequence[Round]) -> Spread:
    """The memory's best speed in each round, GB/s."""
    return Spread.of(each.bandwidth.best / GIGA for each in measured)


def bandwidth_median(measured: Sequence[Round]) -> Spread:
    """The memory's median speed in each round, GB/s."""
    return Spread.of(each.bandwidth.median / GIGA for each in measured)


def enqueue(measured: Sequence[Round]) -> Spread | None:
    """Milliseconds until a token's launches are enqueued, where they were measured."""
    each = [1000 * one.enqueued for one in measured if one.enqueued is not None]
    return Spread.of(each) if each else None


def bytes_read(case: Case, timing: Timing, step_bytes: int) -> float:
    """Bytes of weights read a second: each step reads them once, however many sequences it has."""
    return step_bytes * case.tokens / timing.seconds


def results(
    cases: Sequence[Case],
    measured: Sequence[Round],
    step_bytes: int | None,
    *,
    elsewhere: bool = False,
) -> tuple[Result, ...]:
    """Each case's speed, and the time to first token with the prompt's.

    What part of the memory's speed is used is told unless the weights lie ``elsewhere``.
    """
    return tuple(
        result
        for index, case in enumerate(cases)
        for result in _of_case(case, measured, index, step_bytes, elsewhere)
    )


def _of_case(
    case: Case, measured: Sequence[Round], index: int, step_bytes: int | None, elsewhere: bool
) -> Iterator[Result]:
    timings = [each.timings[index] for each in measured]

    def result(
        name: str, unit: str, values: Iterable[float], read: list[float] | None = None
    ) -> Result:
        best = [each.bandwidth.best for each in measured]
        share = None if read is None or elsewhere else Spread.of(map(truediv, read, best))
        return Result(
            name=name,
            unit=unit,
            tokens=case.tokens,
            depth=case.depth,
            sequences=case.sequences,
            value=Spread.of(values),
            read=None if read is None else Spread.of(each / GIGA for each in read),
            read_share=share,
        )

    speeds = [rate(case, timing) for timing in timings]
    first_tokens = [each.first_token for each in timings if each.first_token is not None]
    if first_tokens:
        yield result(case.name, "tokens/s", speeds)
        yield result("ttft", "s", first_tokens)
    elif step_bytes is None:
        yield result(case.name, "tokens/s", speeds)
    else:
        read = [bytes_read(case, timing, step_bytes) for timing in timings]
        yield result(case.name, "tokens/s", speeds, read)
