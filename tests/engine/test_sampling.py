"""The sampler against a slow, plain reading of its definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
from attrs import frozen
from hypothesis import assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from caldrix.engine.candidates import Candidates
from caldrix.engine.sampling import Sampler, SamplingSettings, UnusableLogits
from caldrix.weights.tensor import Float32
from tests.support.logits import flat, peaked

Shape = Callable[[np.random.Generator, int], npt.NDArray[np.floating]]

settings_strategy = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 5e-324, 1e-3, 0.1, 0.7, 1.0, 3.0, 1e38, 1e308]),
    top_k=st.sampled_from([0, 1, 2, 5, 80, 300, 1000, 5000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 5e-324, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8, 1e-300, 1e300]),
    seed=st.integers(0, 2**70),
)
# Few distinct values make ties; the largest have differences that exceed float32.
logits_strategy = st.one_of(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
    st.lists(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 3.0]), min_size=1, max_size=300),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=12),
)


SHAPES: dict[str, Shape] = {
    "peaked": peaked,
    "flat": flat,
    "steps": lambda random, size: np.round(random.standard_normal(size) * 4) / 4,
    "equal": lambda random, size: np.full(size, -1.5),
    "two levels": lambda random, size: np.where(random.random(size) < 0.1, 2.0, -2.0),
    "heavy tails": lambda random, size: random.standard_cauchy(size),
    "huge": lambda random, size: random.uniform(-3.4e38, 3.4e38, size),
    "few allowed": lambda random, size: np.where(
        random.random(size) < 0.02, random.standard_normal(size), -math.inf
    ),
    "far above zero": lambda random, size: 1e4 + random.standard_normal(size),
}

VOCABULARY = 150_000
NEAR = 1e-9
LARGEST = np.finfo(np.float64).max


class Undecided(Exception):
    """Rounding decides: the definition in exact numbers and float64 may differ."""


def make_logits(shape: str, seed: int, size: int) -> Float32:
    return SHAPES[shape](np.random.default_rng(seed), size).astype(np.float32)


@np.errstate(over="ignore")
def slow_pick(logits: Float32, settings: SamplingSettings, seen: set[int], uniform: float) -> int:
    """The definition, step by step, all of it sorted and in the widest floats there are."""
    values = logits.astype(np.float64)
    for token in seen:
        value, penalty = float(values[token]), settings.repetition_penalty
        value = value / penalty if value > 0 else value * penalty
        values[token] = min(max(value, -LARGEST), LARGEST)
    ranked = np.argsort(-values, kind="stable")
    if settings.temperature == 0:
        return int(ranked[0])
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    offsets = (values[ranked] - values[ranked[0]]).astype(np.longdouble)
    weights = np.exp(offsets)
    kept = ranked.size
    if settings.top_p < 1:
        kept = _first(np.cumsum(weights) / weights.sum(), settings.top_p) + 1
    if settings.min_p > 0:
        off = np.abs(weights - settings.min_p)
        if np.any((off > 0) & (off < NEAR * settings.min_p)):
            raise Undecided
        kept = min(kept, int(np.count_nonzero(weights >= settings.min_p)))
    weights = np.exp(offsets[:kept] / settings.temperature)
    return int(ranked[_first(np.cumsum(weights) / weights.sum(), uniform)])


def _first(cumulative: npt.NDArray[np.longdouble], share: float) -> int:
    if np.any(np.abs(cumulative - share) < NEAR):
        raise Undecided
    return int(np.searchsorted(cumulative, share))


def check_picks(logits: Float32, settings: SamplingSettings, prompt: list[int], count: int) -> None:
    """``count`` picks are the definition's. Raises Undecided."""
    sampler = Sampler(settings, prompt)
    draws = np.random.Generator(np.random.PCG64(settings.seed))
    seen = set(prompt)
    for _ in range(count):
        picked = sampler.pick(logits)
        uniform = draws.random() if settings.temperature else 0.0
        assert picked == slow_pick(logits, settings, seen, uniform)
        seen.add(picked)


@given(logits=logits_strategy, settings=settings_strategy, data=st.data())
@hypothesis_settings(deadline=None)
def test_picks_what_the_definition_picks(
    logits: list[float], settings: SamplingSettings, data: st.DataObject
) -> None:
    prompt = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=4))
    try:
        check_picks(np.array(logits, np.float32), settings, prompt, 4)
    except Undecided:
        assume(False)


@given(
    shape=st.sampled_from(sorted(SHAPES)),
    size=st.integers(4_000, 12_000),
    seed=st.integers(0, 2**32),
    settings=settings_strategy,
    history=st.integers(0, 300),
)
@hypothesis_settings(max_examples=150, deadline=None)
def test_picks_from_more_than_are_sorted(
    shape: str, size: int, seed: int, settings: SamplingSettings, history: int
) -> None:
    logits = make_logits(shape, seed, size)
    prompt = np.random.default_rng(seed).integers(0, size, history).tolist()
    try:
        check_picks(logits, settings, prompt, 3)
    except Undecided:
        assume(False)


@pytest.mark.parametrize("shape", ["peaked", "flat", "steps"])
@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(temperature=0.7, seed=1),
        SamplingSettings(temperature=1.3, top_k=40, seed=2),
        SamplingSettings(temperature=1.0, top_p=0.95, seed=3),
        SamplingSettings(temperature=0.7, min_p=0.05, repetition_penalty=1.1, seed=4),
        SamplingSettings(0.7, 20_000, 0.9, 0.01, 1.1, seed=5),
    ],
)
def test_picks_from_a_large_vocabulary(shape: str, settings: SamplingSettings) -> None:
    logits = make_logits(shape, 0, VOCABULARY)
    check_picks(logits, settings, list(range(0, VOCABULARY, 75)), 3)


@pytest.mark.parametrize("shape", ["peaked", "flat", "far above zero"])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 20.0])
@pytest.mark.parametrize("penalized", [False, True])
def test_the_slightest_difference_of_a_draw_counts(
    shape: str, temperature: float, penalized: bool
) -> None:
    """Float32 sums, and logits rounded to float32, could not tell these draws apart."""
    rounded = make_logits(shape, 0, VOCABULARY)
    logits = SHAPES[shape](np.random.default_rng(0), VOCABULARY) if penalized else rounded
    candidates = Candidates(logits, rounded)
    ranked = np.argsort(-logits, kind="stable")
    offsets = (logits[ranked].astype(np.longdouble) - logits[ranked[0]]) / temperature
    cumulative = np.cumsum(np.exp(offsets)) / np.exp(offsets).sum()
    for rank in [*range(0, 300, 12), 5_000, 100_000]:
        share, gap = cumulative[rank], cumulative[rank + 1] - cumulative[rank]
        step = min(1e-12, gap / 4)
        if step < 1e-14:
            break
        assert candidates.draw(float(share - step), temperature) == ranked[rank]
        assert candidates.draw(float(share + step), temperature) == ranked[rank + 1]


def test_penalized_logits_are_not_rounded() -> None:
    """A penalty of 1 + 1e-12 is nothing in float32, and decides who is best in float64."""
    logits = np.zeros(VOCABULARY, np.float32)
    logits[[70, 140_000]] = 5.0
    settings = SamplingSettings(temperature=1.0, top_k=1, repetition_penalty=1 + 1e-12, seed=0)
    assert Sampler(settings, [70]).pick(logits) == 140_000
    two = SamplingSettings(temperature=1e-14, top_k=2, repetition_penalty=1 + 1e-12, seed=0)
    assert Sampler(two, [70]).pick(logits) == 140_000
    assert Sampler(two, [140_000]).pick(logits) == 70


@pytest.mark.parametrize("size", [8, 10_000])
@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        (SamplingSettings(temperature=1e30, top_k=3), 3),
        (SamplingSettings(temperature=1e30, top_p=0.5), 4),
        (SamplingSettings(temperature=1e30, top_p=0.5 + 1e-12), 5),
        (SamplingSettings(temperature=1e30, top_p=1e-300), 1),
        (SamplingSettings(temperature=1e30, min_p=1.0), 8),
        (SamplingSettings(temperature=1e30, top_k=6, top_p=0.5), 3),
    ],
)
def test_ties_at_a_cut_go_to_lower_ids(size: int, settings: SamplingSettings, kept: int) -> None:
    """Eight tokens share the best logit; all others weigh nothing."""
    logits = np.full(size, -1e30, np.float32)
    best = np.linspace(0, size - 1, 8).astype(int)
    logits[best] = 2.0
    candidates = Sampler(settings, ())
    picked = {candidates.pick(logits) for _ in range(200)}
    assert picked == set(best[:kept].tolist())


def test_a_share_that_is_reached_exactly_is_reached() -> None:
    """Every eighth token is best, by too little to weigh more; a search samples just these."""
    logits = np.zeros(8_192, np.float32)
    logits[::8] = 1e-20
    kept = Candidates(logits, logits).nucleus(0.125)
    assert kept.draw(float(np.nextafter(1.0, 0.0)), 1.0) == 8_184
    more = Candidates(logits, logits).nucleus(0.125 + 1e-9)
    assert more.draw(float(np.nextafter(1.0, 0.0)), 1.0) == 1


def test_the_last_few_of_a_vocabulary_count() -> None:
    """They are a remainder, in none of the equal groups that limits are taken from."""
    logits = np.full(VOCABULARY, -1e3, np.float32)
    logits[:256] = 0.0
    logits[-40:] = -0.1
    candidates = Candidates(logits, logits)
    assert candidates.draw(255.5 / (256 + 40 * math.exp(-0.1)), 1.0) == 255
    assert candidates.draw(256.5 / (256 + 40 * math.exp(-0.1)), 1.0) == VOCABULARY - 40


def test_zeros_of_either_sign_are_equal() -> None:
    for logits in ([-0.0, 0.0], [0.0, -0.0]):
        array = np.array(logits, np.float32)
        assert Sampler(SamplingSettings(), ()).pick(array) == 0
        assert Sampler(SamplingSettings(repetition_penalty=1.5), (0,)).pick(array) == 0
        assert Sampler(SamplingSettings(temperature=1.0, top_k=1), ()).pick(array) == 0


def test_what_is_ruled_out_is_never_picked() -> None:
    logits = np.full(10_000, -math.inf, np.float32)
    logits[[3, 9_999]] = [-5.0, -6.0]
    last = float(np.nextafter(1.0, 0.0))
    candidates = Candidates(logits, logits)
    assert candidates.draw(0.0, 1.0) == 3
    assert candidates.draw(last, 1.0) == 9_999
    with np.errstate(over="ignore"):
        assert candidates.best(5_000).draw(last, 1e308) == 9_999


def _chi_square(temperature: float, shape: str) -> float:
    """Of 2,000 draws at ``temperature``, in 20 classes that are alike at temperature 1."""
    logits = make_logits(shape, 0, 5_000)
    ranked = np.argsort(-logits, kind="stable")
    weights = np.exp(logits[ranked].astype(np.float64) - logits.max())
    probabilities = weights / weights.sum()
    middle = np.cumsum(probabilities) - probabilities / 2
    classes = (middle * 20).astype(int)
    class_of = np.empty(ranked.size, int)
    class_of[ranked] = classes
    expected = 2_000 * np.bincount(classes, probabilities, minlength=20)
    sampler = Sampler(SamplingSettings(temperature=temperature, seed=7), ())
    counts = np.bincount(class_of[[sampler.pick(logits) for _ in range(2_000)]], minlength=20)
    used = expected > 0
    return float(np.sum((counts[used] - expected[used]) ** 2 / expected[used]))


@pytest.mark.parametrize("shape", ["peaked", "flat"])
def test_draws_follow_the_probabilities(shape: str) -> None:
    # A sampler that is right exceeds 51 with one seed in 10,000 (19 degrees of freedom).
    assert _chi_square(1.0, shape) < 51
    assert _chi_square(1.25, shape) > 51


def test_a_seed_repeats_and_a_fresh_one_is_told() -> None:
    logits = np.zeros(1000, np.float32)
    hot = SamplingSettings(temperature=1.0)
    fresh = Sampler(hot, ())
    tokens = [fresh.pick(logits) for _ in range(8)]
    again = Sampler(SamplingSettings(temperature=1.0, seed=fresh.seed), ())
    assert [again.pick(logits) for _ in range(8)] == tokens
    other = Sampler(hot, ())
    assert other.seed != fresh.seed
    assert [other.pick(logits) for _ in range(8)] != tokens


@frozen
class Run:
    """One request, and the logits that it meets in turn."""

    settings: SamplingSettings
    shape: str
    size: int

    def sampler(self) -> Sampler:
        return Sampler(self.settings, range(50))

    def logits(self) -> list[Float32]:
        return [make_logits(self.shape, seed, self.size) for seed in range(3)] * 10

    def alone(self) -> list[int]:
        sampler = self.sampler()
        return [sampler.pick(logits) for logits in self.logits()]


RUNS = [
    Run(SamplingSettings(temperature=1.0, repetition_penalty=1.3, seed=1), "flat", 20_000),
    Run(SamplingSettings(temperature=0.7, top_p=0.9, seed=1), "flat", 50_000),
    Run(SamplingSettings(temperature=2.0, repetition_penalty=0.9, seed=2), "peaked", 9_000),
]


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    alone = [run.alone() for run in RUNS]
    unseeded = Run(SamplingSettings(temperature=1.0, min_p=0.1), "steps", 30_000)
    company = [run.sampler() for run in (*RUNS, unseeded)]
    steps = zip(*(run.logits() for run in (*RUNS, unseeded)), strict=True)
    together = [
        [sampler.pick(logits) for sampler, logits in zip(company, step, strict=True)]
        for step in steps
    ]
    assert [list(tokens) for tokens in zip(*together, strict=True)][:3] == alone


def test_a_seed_gives_the_same_tokens_in_any_thread() -> None:
    with ThreadPoolExecutor(len(RUNS)) as threads:
        running = [threads.submit(run.alone) for run in RUNS]
        assert [each.result() for each in running] == [run.alone() for run in RUNS]


def test_greedy_is_what_never_draws() -> None:
    assert not Sampler(SamplingSettings(temperature=0.5, top_k=1), ()).greedy
    assert Sampler(SamplingSettings(repetition_penalty=1.5), ()).greedy


def test_a_long_generation_penalizes_every_token_once() -> None:
    """Each token is the best once: a penalty of 100 puts it below all that were not seen."""
    logits = np.linspace(50.0, 2.0, 300).astype(np.float32)
    sampler = Sampler(SamplingSettings(repetition_penalty=100.0), (5, 5, 7))
    picked = [sampler.pick(logits) for _ in range(298)]
    assert picked == [token for token in range(300) if token not in (5, 7)]
    # Now all are as they were to each other.
    assert [sampler.pick(logits) for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SamplingSettings(temperature=5e-324, seed=1), 2),
        (SamplingSettings(temperature=1e308, top_k=1, seed=1), 2),
        (SamplingSettings(repetition_penalty=5e-324), 1),
        (SamplingSettings(repetition_penalty=5e-324, temperature=5e-324, seed=1), 1),
        (SamplingSettings(repetition_penalty=1e308), 2),
    ],
)
@pytest.mark.parametrize("size", [4, 10_000])
def test_settings_at_the_ends_of_their_ranges(
    settings: SamplingSettings, expected: int, size: int
) -> None:
    logits = np.full(size, -2.0, np.float32)
    logits[:4] = [-1.0, 2.0, 3.0, 0.0]
    assert Sampler(settings, (0, 1)).pick(logits) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(UnusableLogits):
        Sampler(SamplingSettings(), ()).pick(np.array([0.0, bad, 1.0], np.float32))
