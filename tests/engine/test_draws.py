"""Sampled tokens that the lane picks: each draw counts once, whatever fails and whoever is beside.

The lane is scripted, and the engine's own pick is never asked for a sampled token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.engine.engine import running_engine
from caldrix.engine.reading import ReadingRequest
from caldrix.engine.sampling import Sampler, SamplingSettings, UnusableLogits
from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32
from tests.engine.test_company import (
    CONTEXT,
    END,
    POISON,
    WORDS,
    Answer,
    Ask,
    DigestExecutor,
    perform,
    run,
    together,
)
from tests.support.draws import PicksTokens, pick

HOT = SamplingSettings(temperature=1.3, top_k=20, repetition_penalty=1.2, seed=5)


SPOILED = 23
"""A token."""


class PickingDigests(PicksTokens, DigestExecutor):
    """The lane of `test_company`, which picks sampled tokens."""


class FindsNothing(PickingDigests):
    """Picks nothing after `SPOILED`; only ``once``, in company, or always."""

    def __init__(self, *, once: bool) -> None:
        super().__init__()
        self._once = once
        self.failed = 0

    def step(self, slices: Sequence[Slice]) -> Float32:
        logits = super().step(slices)
        fails = not self._once or (len(slices) > 1 and not self.failed)
        for place, each in enumerate(each for each in slices if each.draw is not None):
            if fails and SPOILED in each.tokens:
                self.picked[place] = -1
                self.failed += 1
        return logits


async def alone(asks: Sequence[Ask]) -> list[Answer | None]:
    """Each answer by an engine that takes one at a time, over a lane that does not fail."""
    executor = PickingDigests(reproducible=False)
    async with running_engine(executor, context=CONTEXT) as engine:
        return [await perform(engine, ask) for ask in asks]


asks_strategy = st.lists(
    st.builds(
        Ask,
        prompt=st.lists(st.integers(1, WORDS - 1), min_size=1, max_size=6).map(tuple),
        max_tokens=st.sampled_from([1, 3, 12, 40]),
        temperature=st.sampled_from([0.0, 0.5, 1.0]),
        seed=st.integers(0, 99),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(
    asks=asks_strategy,
    rows=st.integers(1, 4),
    shaky=st.lists(st.integers(1, 30), max_size=4),
    poisoned=st.booleans(),
)
def test_no_fault_of_a_step_costs_or_repeats_a_draw(
    asks: list[Ask], rows: int, shaky: list[int], poisoned: bool
) -> None:
    if poisoned:
        asks[0] = evolve(asks[0], prompt=(*asks[0].prompt, POISON))

    async def test() -> None:
        executor = PickingDigests(shaky=shaky)
        answers = await together(executor, asks, rows=rows)
        assert answers == await alone(asks)
        assert poisoned == any(answer.failed for answer in answers if answer)

    run(test)


def test_a_step_that_fails_is_repeated_with_the_same_random_number() -> None:
    asks = [Ask((1, 2, 3), 6, temperature=1.0, seed=seed) for seed in (1, 2)]

    async def test() -> None:
        executor = PickingDigests(shaky=[3])
        assert await together(executor, asks, rows=2) == await alone(asks)
        numbers = [draw.uniform for draw in executor.draws]
        assert len(numbers) == len(set(numbers)) + 2

    run(test)


def test_logits_that_are_unusable_are_met_by_none_but_their_own() -> None:
    """In company it may have been another's fault, so it is tried again alone."""
    asks = [Ask((1, SPOILED), 9, temperature=1.0), Ask((1, 2, 3), 9, temperature=1.0, seed=8)]

    async def test() -> None:
        executor = FindsNothing(once=True)
        assert await together(executor, asks, rows=2) == await alone(asks)
        assert executor.failed == 1

    run(test)


def test_a_request_whose_logits_are_never_usable_fails_alone() -> None:
    asks = [Ask((1, SPOILED), temperature=1.0), Ask((1, 2, 3), temperature=1.0, seed=3)]

    async def test() -> None:
        failed, other = await together(FindsNothing(once=False), asks, rows=2)
        assert failed == Answer((), failed=True)
        assert [other] == await alone(asks[1:])

    run(test)


def test_greedy_and_reading_requests_are_drawn_no_tokens_for() -> None:
    async def test() -> None:
        executor = PickingDigests()
        async with running_engine(executor, context=CONTEXT, rows=2) as engine:
            greedy = await perform(engine, Ask((1, 2), 9))
            async with engine.read(ReadingRequest((1, 2, 3), (4, 5))) as reading:
                logits = await reading.logits()
        assert not executor.draws
        assert logits.shape == (2,)
        async with running_engine(DigestExecutor(), context=CONTEXT) as engine:
            assert await perform(engine, Ask((1, 2), 9)) == greedy

    run(test)


def test_an_executor_that_could_pick_and_was_not_compiled_to_is_not_asked() -> None:
    asks = [Ask((1, 2, 3), 9, temperature=1.0)]

    async def test() -> None:
        executor = PickingDigests()
        executor.picks = False
        async with running_engine(DigestExecutor(), context=CONTEXT) as engine:
            on_cpu = [await perform(engine, ask) for ask in asks]
        assert await together(executor, asks, rows=2) == on_cpu
        assert not executor.draws

    run(test)


def test_an_end_token_that_the_lane_picks_ends_the_answer() -> None:
    asks = [Ask((number, 2), 200, temperature=2.0, seed=number) for number in range(1, 9)]

    async def test() -> None:
        answers = await together(PickingDigests(), asks, rows=4)
        assert answers == await alone(asks)
        for answer in answers:
            assert answer is not None
            assert END not in answer.tokens

    run(test)


def test_a_draw_is_the_same_until_its_token_is_picked() -> None:
    """The random numbers are those that a pick on the CPU takes, one for each token."""
    numbers = np.random.Generator(np.random.PCG64(5)).random(3)
    sampler = Sampler(HOT, [3, 3, 9])
    logits = np.zeros(30, np.float32)
    logits[[3, 7, 8]] = 5.0
    seen = {3, 9}
    for number in numbers:
        first, again = sampler.draw(), sampler.draw()
        assert (first.uniform, again.uniform) == (number, number)
        assert (first.temperature, first.top_k, first.repetition_penalty) == (1.3, 20, 1.2)
        assert set(first.seen.tolist()) == seen
        with pytest.raises(UnusableLogits):
            sampler.drawn(-1)
        token = pick(logits, first)
        sampler.drawn(token)
        assert set(first.seen.tolist()) == seen
        seen.add(token)


def test_what_is_not_penalized_names_no_tokens() -> None:
    draw = Sampler(SamplingSettings(temperature=1.0, min_p=0.25), [1, 2]).draw()
    assert (draw.repetition_penalty, draw.seen.size, draw.min_p, draw.top_p) == (1.0, 0, 0.25, 1.0)
