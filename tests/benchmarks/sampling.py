"""Times the pick of one token from random logits, by settings. Run nothing beside it.

Peaked logits are like a language model's. Flat ones, standard normal, are the worst to be had: with
them a draw, and a top-p cut, reach far down the vocabulary.

`just bench-sampling` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from attrs import evolve, frozen
from rich.console import Console
from rich.table import Table

from caldrix.cli.options import check_positive
from caldrix.engine.sampling import Sampler, SamplingSettings
from caldrix.weights.tensor import Float32
from tests.benchmarks.script import run_script
from tests.support.logits import flat, peaked

_HISTORY = 2_000
_STEPS = 8
"""Different logits, so that no branch is learnt by heart."""
_SEED = 0

_SAMPLED = SamplingSettings(temperature=0.7, seed=_SEED)
_SETTINGS: Mapping[str, SamplingSettings] = {
    "greedy": SamplingSettings(),
    "temperature 0.7": _SAMPLED,
    "… top_k 40": evolve(_SAMPLED, top_k=40),
    "… top_p 0.9": evolve(_SAMPLED, top_p=0.9),
    "… top_p 0.95": evolve(_SAMPLED, top_p=0.95),
    "… min_p 0.05": evolve(_SAMPLED, min_p=0.05),
    "… repetition_penalty 1.1": evolve(_SAMPLED, repetition_penalty=1.1),
    "all of them": evolve(_SAMPLED, top_k=40, top_p=0.9, min_p=0.05, repetition_penalty=1.1),
}
_SHAPES: Mapping[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "peaked": peaked,
    "flat": flat,
}


@frozen
class Spread:
    """Milliseconds of a pick."""

    median: float
    slow: float
    """The 90th percentile."""


def sampling(*, vocabulary: int = 150_000, picks: int = 200) -> None:
    """Time a pick.

    Parameters
    ----------
    vocabulary
        Logits to pick from.
    picks
        How often each is timed, after a few that don't count.
    """
    check_positive("--vocabulary", vocabulary, least=2)
    check_positive("--picks", picks)
    random = np.random.default_rng(_SEED)
    prompt = random.integers(0, vocabulary, _HISTORY).tolist()
    logits = {
        name: [make(random, vocabulary).astype(np.float32) for _ in range(_STEPS)]
        for name, make in _SHAPES.items()
    }
    measured = {
        name: [_time(Sampler(settings, prompt), each, picks) for each in logits.values()]
        for name, settings in _SETTINGS.items()
    }
    _print(measured, vocabulary)


def _time(sampler: Sampler, logits: Sequence[Float32], picks: int) -> Spread:
    seconds = []
    for number in range(_STEPS + picks):
        began = time.perf_counter()
        sampler.pick(logits[number % _STEPS])
        seconds.append(time.perf_counter() - began)
    median, slow = np.percentile(seconds[_STEPS:], (50, 90)) * 1e3
    return Spread(float(median), float(slow))


def _print(measured: Mapping[str, Sequence[Spread]], vocabulary: int) -> None:
    table = Table("settings", box=None, pad_edge=False, title_justify="left")
    table.title = f"ms a pick of {vocabulary:,} tokens, a history of {_HISTORY:,}: median (90 %)"
    for shape in _SHAPES:
        table.add_column(shape, justify="right", no_wrap=True)
    for name, spreads in measured.items():
        table.add_row(name, *(f"{each.median:.3f} ({each.slow:.3f})" for each in spreads))
    Console(markup=False, highlight=False, soft_wrap=True).print(table)


if __name__ == "__main__":
    run_script(sampling, "bench-sampling")
