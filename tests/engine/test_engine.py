"""The engine over a scripted lane: order, limits, leaving, failing, stopping."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from caldrix.engine.engine import Engine, FinishReason, GenerationRequest, running_engine
from caldrix.engine.errors import (
    EngineFailed,
    EngineUnavailable,
    PromptTooLong,
    QueueFull,
    UnknownToken,
)
from caldrix.models.lane import LaneLost, Slice
from caldrix.weights.tensor import Float32
from tests.support.scripted import ScriptedExecutor, endless, reply

END = 9
VOCAB = 10
SPOILT = 8
CONTEXT = 32


@asynccontextmanager
async def engine_over(
    executor: ScriptedExecutor, *, rows: int = 1, queue_depth: int = 8
) -> AsyncIterator[Engine]:
    async with running_engine(
        executor, context=CONTEXT, rows=rows, queue_depth=queue_depth
    ) as engine:
        with trio.fail_after(10):
            yield engine


def request(*prompt: int, max_tokens: int | None = None) -> GenerationRequest:
    return GenerationRequest(prompt or (1,), max_tokens, end_tokens=frozenset({END}))


async def collect(
    engine: Engine, wanted: GenerationRequest
) -> tuple[list[int], FinishReason | None]:
    async with engine.submit(wanted) as generation:
        tokens = [token async for token in generation]
        return tokens, generation.finish_reason


async def a_step_begins(executor: ScriptedExecutor) -> None:
    while not executor.steps:  # noqa: ASYNC110  # it begins in another thread
        await trio.sleep(0.001)


def run(test: Callable[[], Awaitable[None]]) -> None:
    trio.run(test)


def test_the_end_token_ends_and_is_not_handed_out() -> None:
    async def test() -> None:
        async with engine_over(ScriptedExecutor(reply([3, 4, 5], END), VOCAB)) as engine:
            assert await collect(engine, request()) == ([3, 4, 5], FinishReason.STOP)

    run(test)


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "expected"),
    [(1, 1, 1), (1, 4, 4), (1, None, CONTEXT - 1), (CONTEXT - 1, None, 1), (CONTEXT - 2, 9, 2)],
)
def test_limits_end_with_length(prompt_tokens: int, max_tokens: int | None, expected: int) -> None:
    async def test() -> None:
        async with engine_over(ScriptedExecutor(endless(2), VOCAB)) as engine:
            wanted = GenerationRequest((1,) * prompt_tokens, max_tokens)
            assert await collect(engine, wanted) == ([2] * expected, FinishReason.LENGTH)

    run(test)


def test_a_prompt_that_fills_the_context_is_refused_with_both_sizes() -> None:
    async def test() -> None:
        async with engine_over(ScriptedExecutor(endless(2), VOCAB)) as engine:
            with pytest.raises(PromptTooLong, match="32 tokens, and the context of 32 tokens"):
                await collect(engine, GenerationRequest((1,) * CONTEXT))
            assert (engine.running, engine.waiting) == (0, 0)

    run(test)


@pytest.mark.parametrize("token", [VOCAB, -1])
def test_a_token_without_an_embedding_is_refused_by_name(token: int) -> None:
    async def test() -> None:
        async with engine_over(ScriptedExecutor(endless(2), VOCAB)) as engine:
            with pytest.raises(UnknownToken, match=f"the token {token}, .* tokens are 0 to 9"):
                await collect(engine, request(1, token, 2))
            assert (engine.running, engine.waiting) == (0, 0)

    run(test)


@pytest.mark.parametrize("rows", [1, 3])
def test_everyone_gets_their_own_answer(rows: int) -> None:
    def echo(prompt: Sequence[int], generated: Sequence[int]) -> int:
        return prompt[0] if len(generated) < prompt[0] else END

    async def test() -> None:
        executor = ScriptedExecutor(echo, VOCAB)
        answers: dict[int, object] = {}

        async def ask(number: int) -> None:
            answers[number] = await collect(engine, request(number))

        async with engine_over(executor, rows=rows) as engine, trio.open_nursery() as nursery:
            for number in range(1, 9):
                nursery.start_soon(ask, number)
        assert answers == {number: ([number] * number, FinishReason.STOP) for number in range(1, 9)}
        assert executor.rows_seen == set(range(rows))

    run(test)


def test_a_full_queue_refuses_at_once_and_a_leaver_makes_room() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(endless(2), VOCAB)
        executor.gate.clear()
        async with engine_over(executor, queue_depth=1) as engine:
            try:
                async with engine.submit(request()):
                    await a_step_begins(executor)
                    async with engine.submit(request()):
                        with pytest.raises(QueueFull):
                            await collect(engine, request())
                    async with engine.submit(request()):
                        assert (engine.running, engine.waiting) == (1, 1)
            finally:
                executor.gate.set()

    run(test)


def test_leaving_frees_the_row_at_the_next_step() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(endless(2), VOCAB)
        async with engine_over(executor) as engine:
            async with engine.submit(request()) as generation:
                await generation.__anext__()
            steps = executor.steps
            assert (engine.running, engine.waiting) == (0, 0)
            assert await collect(engine, request(1, max_tokens=1)) == ([2], FinishReason.LENGTH)
            assert executor.steps <= steps + 2

    run(test)


def test_a_reader_that_comes_late_takes_several_tokens_at_once() -> None:
    async def test() -> None:
        tokens = [1, 2, 3, 4, 5]
        executor = ScriptedExecutor(reply(tokens, END), VOCAB)
        async with engine_over(executor) as engine, engine.submit(request()) as generation:
            while generation.finish_reason is None:  # noqa: ASYNC110  # it ends in another thread
                await trio.sleep(0.001)
            assert await generation.take() == tokens
            assert await generation.take() == []

    run(test)


def test_a_failed_step_fails_its_requests_alone() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(reply([3, 4], END), VOCAB, fail_at=[2])
        async with engine_over(executor) as engine:
            async with engine.submit(request()) as generation:
                assert await generation.__anext__() == 3
                with pytest.raises(EngineFailed):
                    await generation.__anext__()
            assert await collect(engine, request()) == ([3, 4], FinishReason.STOP)

    run(test)


def test_a_lane_that_is_lost_ends_the_engine_and_tells_everyone() -> None:
    class LostExecutor(ScriptedExecutor):
        def step(self, slices: Sequence[Slice]) -> Float32:
            logits = super().step(slices)
            if self.steps == 2:
                raise LaneLost("the device is gone")
            return logits

    async def test() -> None:
        executor = LostExecutor(endless(2), VOCAB)
        async with (
            engine_over(executor) as engine,
            engine.submit(request()) as running,
            engine.submit(request()) as waiting,
        ):
            assert await running.take() == [2]
            with pytest.raises(EngineFailed):
                await running.take()
            with pytest.raises(EngineUnavailable):
                await waiting.take()
            assert (engine.failed, engine.stopped) == (True, True)
            with pytest.raises(EngineUnavailable):
                await collect(engine, request())
        assert executor.steps == 2

    with capture_logs() as logs:
        run(test)
    assert [entry["event"] for entry in logs] == ["engine_failed"]


def test_a_lane_lost_between_steps_leaves_the_answers_that_were_complete() -> None:
    class LostBetweenSteps(ScriptedExecutor):
        def resumable(self, row: int, length: int) -> int:
            raise LaneLost("the device is gone")

    async def test() -> None:
        executor = LostBetweenSteps(endless(2), VOCAB)
        executor.gate.clear()
        outcomes: list[object] = []

        async def ask(engine: Engine) -> None:
            outcomes.append(await collect(engine, request(1, 2, max_tokens=1)))

        async with engine_over(executor) as engine, trio.open_nursery() as nursery:
            nursery.start_soon(ask, engine)
            await a_step_begins(executor)
            # It could go on from what the first one's row holds, so that is looked at.
            async with engine.submit(request(1, 3)) as waiting:
                executor.gate.set()
                with pytest.raises(EngineUnavailable):
                    await waiting.take()
        assert outcomes == [([2], FinishReason.LENGTH)]
        assert engine.failed

    with capture_logs() as logs:
        run(test)
    assert [entry["event"] for entry in logs] == ["engine_failed"]


def test_logits_that_are_no_numbers_fail_the_request_they_are_for() -> None:
    class SpoiltExecutor(ScriptedExecutor):
        def step(self, slices: Sequence[Slice]) -> Float32:
            logits = super().step(slices)
            if any(SPOILT in item.tokens for item in slices):
                # As sums do that the rows of a step have a part in.
                logits[...] = np.nan
            return logits

    async def test() -> None:
        executor = SpoiltExecutor(reply([3, 4], END), VOCAB)
        outcomes: list[object] = []

        async def ask(*prompt: int) -> None:
            try:
                outcomes.append((await collect(engine, request(*prompt)))[0])
            except EngineFailed:
                outcomes.append("failed")

        executor.gate.clear()
        async with engine_over(executor, rows=3) as engine, trio.open_nursery() as nursery:
            for prompt in (1, SPOILT, 2):
                nursery.start_soon(ask, prompt)
            await trio.testing.wait_all_tasks_blocked()
            executor.gate.set()
        assert sorted(map(str, outcomes)) == ["[3, 4]", "[3, 4]", "failed"]

    with capture_logs():
        run(test)


def test_a_stopped_engine_leaves_no_step_behind() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(endless(2), VOCAB)
        async with engine_over(executor) as engine, engine.submit(request()) as generation:
            await generation.take()
            engine.stop()
            await engine.ended.wait()
        steps = executor.steps
        await trio.sleep(0.01)
        assert executor.steps == steps

    run(test)


def test_stopping_ends_all_and_takes_no_more() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(endless(2), VOCAB)
        executor.gate.clear()
        async with engine_over(executor) as engine:
            async with engine.submit(request()) as running, engine.submit(request()) as waiting:
                engine.stop()
                executor.gate.set()
                for generation in (running, waiting):
                    with pytest.raises(EngineUnavailable):
                        await generation.__anext__()
            with pytest.raises(EngineUnavailable):
                await collect(engine, request())

    run(test)


def test_leaving_the_engine_waits_for_its_thread() -> None:
    async def test() -> None:
        executor = ScriptedExecutor(endless(2), VOCAB)
        executor.gate.clear()
        async with engine_over(executor) as engine, engine.submit(request()):
            await a_step_begins(executor)
            opener = threading.Timer(0.1, executor.gate.set)
            opener.start()
        # The step that waited at the gate is over, and the thread made no other.
        assert executor.gate.is_set()
        steps = executor.steps
        opener.join()
        assert executor.steps == steps

    run(test)
