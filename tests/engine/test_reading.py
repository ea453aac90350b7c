"""Readings: the right logits, whatever is reused, sliced, in company, fails, or leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from caldrix.engine.engine import Engine, GenerationRequest, ReadingRequest, running_engine
from caldrix.engine.errors import (
    EngineFailed,
    EngineUnavailable,
    PromptTooLong,
    QueueFull,
    UnknownToken,
)
from caldrix.engine.speculation.ngram import NgramProposer, SuffixLengths
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.speculation.tuner import Tuner
from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32
from tests.support.readable import ReadableExecutor, logits_after
from tests.support.serving import trio_test, wait_idle

VOCAB = 300
CONTEXT = 1024
POISON = 299
IDS = (7, 3, 250)
LONG = tuple(n % 290 for n in range(700))
"""More than a step computes of a prompt."""


@asynccontextmanager
async def engine_over(executor: ReadableExecutor, **settings: Any) -> AsyncIterator[Engine]:
    async with running_engine(executor, context=CONTEXT, **settings) as engine:
        yield engine


def wanted(prompt: tuple[int, ...]) -> list[float]:
    """The logits at `IDS`, in that order."""
    after: list[float] = logits_after(prompt, VOCAB)[list(IDS)].tolist()
    return after


async def read(engine: Engine, prompt: tuple[int, ...]) -> tuple[list[float], int]:
    """The logits that are read, and how many of the prompt's tokens a row held already."""
    async with engine.read(ReadingRequest(prompt, IDS)) as reading:
        logits = await reading.logits()
    assert logits.dtype == np.float32
    assert reading.prompt_tokens == len(prompt)
    return logits.tolist(), reading.timeline.cached_tokens


@trio_test
async def test_a_reading_goes_on_from_what_a_row_holds() -> None:
    executor = ReadableExecutor(VOCAB)
    async with engine_over(executor) as engine:
        assert await read(engine, LONG) == (wanted(LONG), 0)
        other = (*LONG[:600], 8, 9)
        assert await read(engine, other) == (wanted(other), 600)
        # The same again: its last token is computed, as its logits are wanted.
        assert await read(engine, other) == (wanted(other), 601)
        assert executor.tokens_computed == 700 + 2 + 1
        # And generation goes on from a row that was read.
        async with engine.submit(GenerationRequest(other, 2)) as generation:
            first, _ = [token async for token in generation]
    assert first == logits_after(other, VOCAB).argmax()
    assert generation.timeline.cached_tokens == 601


@trio_test
async def test_nothing_is_reused_of_a_lane_that_cannot_promise_the_same_bits() -> None:
    async with engine_over(ReadableExecutor(VOCAB, reproducible=False)) as engine:
        for _ in range(2):
            assert await read(engine, LONG) == (wanted(LONG), 0)


@trio_test
async def test_a_reading_is_the_same_in_company() -> None:
    executor = ReadableExecutor(VOCAB)
    prompts = [(n, *LONG) for n in range(3)]
    found: dict[tuple[int, ...], list[float]] = {}

    async def ask(prompt: tuple[int, ...]) -> None:
        found[prompt], _ = await read(engine, prompt)

    async with (
        engine_over(executor, rows=4) as engine,
        engine.submit(GenerationRequest((1, 2), 50)) as generation,
        trio.open_nursery() as nursery,
    ):
        for prompt in prompts:
            nursery.start_soon(ask, prompt)
        tokens = [token async for token in generation]
    assert found == {prompt: wanted(prompt) for prompt in prompts}
    sequence = [1, 2]
    for token in tokens:
        assert token == logits_after(sequence, VOCAB).argmax()
        sequence.append(token)


@trio_test
async def test_who_fails_alone_fails_and_nobody_else_does() -> None:
    executor = ReadableExecutor(VOCAB, poison=POISON, alone=True)
    good, bad = (5, 6, 7), (5, POISON)
    failures: list[Exception] = []

    async def ask_badly() -> None:
        try:
            await read(engine, bad)
        except EngineFailed as error:
            failures.append(error)

    async with engine_over(executor, rows=3) as engine:
        executor.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_badly)
            for prompt in (good, LONG):
                nursery.start_soon(check, engine, prompt)
            await trio.testing.wait_all_tasks_blocked()
            executor.gate.set()
        assert len(failures) == 1
        assert (await read(engine, good))[0] == wanted(good)


async def check(engine: Engine, prompt: tuple[int, ...]) -> None:
    assert (await read(engine, prompt))[0] == wanted(prompt)


class Spoilt(ReadableExecutor):
    """Puts a value at some tokens' logits."""

    def __init__(self, value: float, at: tuple[int, ...]) -> None:
        super().__init__(VOCAB)
        self._value, self._at = value, list(at)

    def step(self, slices: Any) -> Float32:
        logits = super().step(slices)
        logits[:, self._at] = self._value
        return logits


@pytest.mark.parametrize(
    ("value", "at"),
    [(np.nan, (3,)), (np.nan, IDS), (np.inf, (250,))],
    ids=["no number", "none", "infinite"],
)
def test_logits_of_no_use_fail_the_reading(value: float, at: tuple[int, ...]) -> None:
    @trio_test
    async def run() -> None:
        async with engine_over(Spoilt(value, at)) as engine:
            with pytest.raises(EngineFailed):
                await read(engine, LONG)
            assert not engine.stopped

    run()


@trio_test
async def test_what_is_impossible_is_read_as_that() -> None:
    async with engine_over(Spoilt(-np.inf, (3,))) as engine:
        logits, _ = await read(engine, LONG)
    assert logits == [wanted(LONG)[0], -np.inf, wanted(LONG)[2]]
    # Of no other logit is anything known.
    async with engine_over(Spoilt(np.nan, (4,))) as engine:
        assert (await read(engine, LONG))[0] == wanted(LONG)
    async with engine_over(Spoilt(-np.inf, IDS)) as engine:
        logits, _ = await read(engine, LONG)
    assert logits == [-np.inf] * 3


@trio_test
async def test_what_is_refused_at_once() -> None:
    executor = ReadableExecutor(VOCAB)
    async with engine_over(executor, queue_depth=0) as engine:
        with pytest.raises(PromptTooLong):
            await read(engine, (1,) * CONTEXT)
        with pytest.raises(UnknownToken):
            await read(engine, (1, VOCAB))
        async with engine.submit(GenerationRequest((1,))):
            with pytest.raises(QueueFull):
                await read(engine, (1,))
        await wait_idle(engine)
        assert (await read(engine, (1,)))[0] == wanted((1,))
        engine.stop()
        with pytest.raises(EngineUnavailable):
            await read(engine, (1,))


@trio_test
async def test_stopping_ends_a_reading_under_way() -> None:
    executor = ReadableExecutor(VOCAB)
    executor.gate.clear()
    async with engine_over(executor) as engine:
        async with engine.read(ReadingRequest(LONG, IDS)) as reading:
            engine.stop()
            with pytest.raises(EngineUnavailable):
                await reading.logits()
        executor.gate.set()


@trio_test
async def test_leaving_frees_the_row_before_the_prompt_is_computed() -> None:
    executor = ReadableExecutor(VOCAB)
    executor.gate.clear()
    async with engine_over(executor) as engine:
        with trio.move_on_after(0.05):
            await read(engine, LONG)
        executor.gate.set()
        await wait_idle(engine)
        other = (9, 9, 9)
        assert await read(engine, other) == (wanted(other), 0)
        assert executor.tokens_computed < len(LONG)


@trio_test
async def test_readings_come_between_speculated_generations() -> None:
    proposer = NgramProposer(SuffixLengths(2, 4))
    speculator = Speculator(proposer, Tuner(proposer.kinds, fixed=4))
    again = (1, 2, 3) * 20
    async with engine_over(ReadableExecutor(VOCAB), speculator=speculator) as engine:
        for prompt in (again, (*again, 5)):
            async with engine.submit(GenerationRequest(prompt, 12)) as generation:
                tokens = [token async for token in generation]
            assert tokens[-1] == logits_after((*prompt, *tokens[:-1]), VOCAB).argmax()
            await check(engine, prompt)


def test_slices_want_logits_after_the_prompt_alone() -> None:
    seen: list[Slice] = []

    class Watched(ReadableExecutor):
        def step(self, slices: Any) -> Float32:
            seen.extend(slices)
            return super().step(slices)

    @trio_test
    async def run() -> None:
        async with engine_over(Watched(VOCAB)) as engine:
            await read(engine, LONG)

    run()
    assert [item.wanted for item in seen] == [0] * (len(seen) - 1) + [1]
    # No others are computed.
    assert {tuple(item.only.tolist()) for item in seen if item.only is not None} == {IDS}
    assert seen[-1].only is not None
    assert sum(len(item.tokens) for item in seen) == len(LONG)
