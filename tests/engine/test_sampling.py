"""The sampler against a slow, plain reading of its definition."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from caldrix.engine.sampling import Sampler, SamplingSettings, UnusableLogits

settings_strategy = st.builds(
    SamplingSettings,
    temperature=st.sampled_from([0.0, 0.1, 0.7, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 5, 80, 1000]),
    top_p=st.sampled_from([1.0, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    seed=st.integers(0, 2**70),
)
# Few distinct values make ties; the longer lists need more ranks than the sampler looks at first.
logits_strategy = st.one_of(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=12),
    st.lists(st.sampled_from([-2.0, 0.0, 0.5, 3.0]), min_size=1, max_size=300),
)

NEAR = 1e-9


class Undecided(Exception):
    """Rounding decides: the definition in exact numbers and float64 may differ."""


def slow_pick(logits: list[float], settings: SamplingSettings, seen: set[int], draw: float) -> int:
    """The definition, step by step."""
    values = list(logits)
    for token in seen:
        penalty = settings.repetition_penalty
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    ranked = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if settings.temperature == 0:
        return ranked[0]
    if settings.top_k:
        ranked = ranked[: settings.top_k]
    weights = [math.exp(values[token] - values[ranked[0]]) for token in ranked]
    if settings.top_p < 1:
        ranked = ranked[: _reaching(weights, settings.top_p)]
    if settings.min_p > 0:
        for weight in weights[: len(ranked)]:
            if weight != settings.min_p and abs(weight - settings.min_p) < NEAR:
                raise Undecided
        ranked = [
            token
            for token, weight in zip(ranked, weights, strict=False)
            if weight >= settings.min_p
        ]
    best = values[ranked[0]]
    weights = [math.exp((values[token] - best) / settings.temperature) for token in ranked]
    total = math.fsum(weights)
    cumulative = 0.0
    for token, weight in zip(ranked, weights, strict=True):
        cumulative += weight / total
        if abs(cumulative - draw) < NEAR:
            raise Undecided
        if cumulative > draw:
            return token
    return ranked[-1]


def _reaching(weights: list[float], share: float) -> int:
    exact = [Fraction(weight) for weight in weights]
    cumulative, total = Fraction(0), sum(exact)
    for count, weight in enumerate(exact, 1):
        cumulative += weight
        if abs(float(cumulative / total) - share) < NEAR:
            raise Undecided
        if cumulative / total >= share:
            return count
    return len(exact)


@given(logits=logits_strategy, settings=settings_strategy, data=st.data())
def test_picks_what_the_definition_picks(
    logits: list[float], settings: SamplingSettings, data: st.DataObject
) -> None:
    prompt = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=4))
    sampler = Sampler(settings, prompt)
    draws = np.random.Generator(np.random.PCG64(settings.seed))
    seen = set(prompt)
    for _ in range(4):
        picked = sampler.pick(np.array(logits, np.float32))
        draw = draws.random() if settings.temperature else 0.0
        try:
            expected = slow_pick(logits, settings, seen, draw)
        except Undecided:
            assume(False)
        assert picked == expected
        seen.add(picked)


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05])).astype(np.float32)
    sampler = Sampler(SamplingSettings(temperature=1.0, seed=7), ())
    counts = np.bincount([sampler.pick(logits) for _ in range(20_000)], minlength=4)
    # Three standard deviations of the largest share are 0.011.
    np.testing.assert_allclose(counts / 20_000, [0.5, 0.3, 0.15, 0.05], atol=0.012)


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
def test_settings_at_the_ends_of_their_ranges(settings: SamplingSettings, expected: int) -> None:
    logits = np.array([-1.0, 2.0, 3.0, 0.0], np.float32)
    assert Sampler(settings, (0, 1)).pick(logits) == expected


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    with pytest.raises(UnusableLogits):
        Sampler(SamplingSettings(), ()).pick(np.array([0.0, bad, 1.0], np.float32))
