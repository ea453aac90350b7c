"""Faults put into the lane at work: the documented answer, and the next request is served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio
from structlog.testing import capture_logs

from caldrix.models.lane import PrefillSizes
from tests.support.faulty import (
    LETTERS,
    POISON,
    CopiesNothing,
    FailsInCompany,
    Fault,
    FaultyExecutor,
    answer_to,
)
from tests.support.seen import (
    ANSWER_TOKENS,
    FAILED,
    PATIENCE,
    UNAVAILABLE,
    Seen,
    ask,
    fields,
    recovering,
    until,
)
from tests.support.serving import serving, trio_test

PROMPT_TOKENS = 2 * PrefillSizes().alone + 100
"""Three slices."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What is logged of faults is looked at elsewhere."""
    with capture_logs():
        yield


def prompt_of(first: int) -> list[int]:
    return [first, *LETTERS * PROMPT_TOKENS][:PROMPT_TOKENS]


POSITIONS = {
    "first slice": 0,
    "last slice": PROMPT_TOKENS - 1,
    "first decode": PROMPT_TOKENS,
    "later": PROMPT_TOKENS + 3,
}


@pytest.mark.parametrize("neighbours", [0, 2], ids=["alone", "in company"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("fault", ["raises", "gives no numbers"])
@pytest.mark.parametrize("where", POSITIONS)
@trio_test
async def test_a_step_that_fails(where: str, fault: Fault, stream: bool, neighbours: int) -> None:
    executor = FaultyExecutor(fault, POSITIONS[where])
    poisoned = prompt_of(POISON)
    others = [prompt_of(first) for first in LETTERS[:neighbours]]
    came = max(0, POSITIONS[where] - PROMPT_TOKENS + 1)
    seen: dict[int, Seen] = {}

    async def one(prompt: list[int]) -> None:
        seen[prompt[0]] = await ask(server, fields(prompt, stream=stream))

    async with (
        recovering(executor, rows=1 + neighbours) as server,
        trio.open_nursery() as nursery,
    ):
        for prompt in (poisoned, *others):
            nursery.start_soon(one, prompt)
    if stream and came:
        assert seen.pop(POISON) == Seen(200, answer_to(poisoned, came), FAILED)
    else:
        assert seen.pop(POISON) == Seen(500, error=FAILED)
    assert seen == {prompt[0]: Seen(200, answer_to(prompt, ANSWER_TOKENS)) for prompt in others}


@trio_test
async def test_a_step_that_fails_once_in_company_is_seen_by_nobody() -> None:
    prompts = [prompt_of(first) for first in LETTERS[:3]]
    seen: dict[int, Seen] = {}

    async def one(prompt: list[int], stream: bool) -> None:
        seen[prompt[0]] = await ask(server, fields(prompt, stream=stream))

    for step in (2, 4, 7, 11):
        executor = FailsInCompany(step)
        async with recovering(executor, rows=3) as server:
            executor.gate.clear()
            async with trio.open_nursery() as nursery:
                for number, prompt in enumerate(prompts):
                    nursery.start_soon(one, prompt, number == 0)
                engine = server.service.engine
                await until(lambda: engine.running + engine.waiting == 3)  # noqa: B023  # it is awaited here
                executor.gate.set()
        assert executor.failed
        assert seen == {
            prompt[0]: Seen(200, answer_to(prompt, ANSWER_TOKENS)) for prompt in prompts
        }


@trio_test
async def test_a_lane_that_is_lost() -> None:
    executor = FaultyExecutor("is lost", PROMPT_TOKENS + 3)
    poisoned, other = prompt_of(POISON), prompt_of(LETTERS[0])
    seen: dict[str, Seen] = {}

    async def one(name: str, prompt: list[int], stream: bool) -> None:
        seen[name] = await ask(server, fields(prompt, stream=stream))

    async with serving(executor, context=10**6, rows=2) as server:
        engine = server.service.engine
        executor.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "streamed", poisoned, True)
            await until(lambda: engine.running + engine.waiting == 1)
            nursery.start_soon(one, "whole", other, False)
            await until(lambda: engine.running + engine.waiting == 2)
            nursery.start_soon(one, "waiting", [LETTERS[1]], False)
            nursery.start_soon(one, "waiting for a stream", [LETTERS[1]], True)
            await until(lambda: engine.running + engine.waiting == 4)
            executor.gate.set()
        assert seen == {
            "streamed": Seen(200, answer_to(poisoned, 4), FAILED),
            "whole": Seen(500, error=FAILED),
            "waiting": Seen(503, error=UNAVAILABLE),
            "waiting for a stream": Seen(503, error=UNAVAILABLE),
        }
        assert engine.failed
        assert await ask(server, fields(other, stream=True)) == Seen(503, error=UNAVAILABLE)
        health = await server.client.get("/healthz")
        assert health.status_code == 503
        assert "the engine has failed" in health.json()["error"]["message"]
        assert (engine.running, engine.waiting) == (0, 0)
        with trio.fail_after(PATIENCE):
            await server.finished.wait()


@trio_test
async def test_what_cannot_be_copied_is_computed() -> None:
    executor = CopiesNothing()
    seen: dict[str, Seen] = {}

    async def one(name: str, prompt: list[int]) -> None:
        seen[name] = await ask(server, fields(prompt, stream=False))

    async with serving(executor, context=10**6, rows=2) as server:
        engine = server.service.engine
        second = [*LETTERS, LETTERS[0]]
        executor.gate.clear()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "first", LETTERS)
            await until(lambda: executor.steps == 1)
            nursery.start_soon(one, "second", second)
            await until(lambda: engine.waiting == 1)
            executor.gate.set()
    assert seen == {
        "first": Seen(200, answer_to(LETTERS, ANSWER_TOKENS)),
        "second": Seen(200, answer_to(second, ANSWER_TOKENS)),
    }
    assert executor.refused
