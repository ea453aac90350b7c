"""A stream of the openai SDK that is given up, under asyncio and under trio, frees its row.

A gate holds the step under way while the client leaves, and opens when the server has seen it. From
there on steps are counted: the row must be the next request's within two.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Sequence

import anyio.to_thread
import openai
import pytest
import trio
from attrs import define, field

from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32
from tests.support import miniature
from tests.support.scripted import ScriptedExecutor, endless
from tests.support.seen import PATIENCE, until
from tests.support.serving import MODEL, Running, serving, trio_test
from tests.support.wire import TEXT

LEAVER, NEXT = 1, 2
"""The tokens that their prompts are made of."""
LONG_PROMPT = 2000
"""Tokens, of which a step computes a fourth."""


class WhoseSteps(ScriptedExecutor):
    """Never ends, and knows for whom each step was: the first token of the row's prompt."""

    def __init__(self) -> None:
        super().__init__(endless(miniature.ids("a")[0]), miniature.tokenizer().vocab_size)
        self.whose: list[int] = []
        self._owner = 0

    def step(self, slices: Sequence[Slice]) -> Float32:
        (item,) = slices
        if item.start == 0:
            self._owner = int(item.tokens[0])
        self.whose.append(self._owner)
        return super().step(slices)


@define(eq=False)
class Leaver:
    """A client in a thread of its own that streams, is told to leave, and waits to be let go."""

    url: str
    prompt: list[int]
    streaming: threading.Event = field(factory=threading.Event)
    leave: threading.Event = field(factory=threading.Event)
    over: threading.Event = field(factory=threading.Event)

    async def run(self, give_up: Way) -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0
        ) as client:
            await give_up(self, client)
            # Leaving the client would close its connections, too.
            await told(self.over)

    async def open(self, client: openai.AsyncOpenAI) -> openai.AsyncStream[openai.types.Completion]:
        return await client.completions.create(model=MODEL, prompt=self.prompt, stream=True)

    async def read_on(self, client: openai.AsyncOpenAI) -> None:
        async for _ in await self.open(client):
            self.streaming.set()


async def told(event: threading.Event) -> None:
    """Waits under any event loop."""
    assert await anyio.to_thread.run_sync(event.wait, PATIENCE)


async def close_the_response(leaver: Leaver, client: openai.AsyncOpenAI) -> None:
    stream = await leaver.open(client)
    await anext(stream)
    leaver.streaming.set()
    await told(leaver.leave)
    await stream.close()


async def leave_the_block(leaver: Leaver, client: openai.AsyncOpenAI) -> None:
    async with await leaver.open(client) as stream:
        await anext(stream)
        leaver.streaming.set()
        await told(leaver.leave)


async def cancel_the_task(leaver: Leaver, client: openai.AsyncOpenAI) -> None:
    """By the event loop's own means."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leaver.read_on, client)
            await told(leaver.leave)
            nursery.cancel_scope.cancel()
    else:
        task = asyncio.create_task(leaver.read_on(client))
        await told(leaver.leave)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


Way = Callable[[Leaver, openai.AsyncOpenAI], Awaitable[None]]
LOOPS = ["asyncio", "trio"]
WAYS: list[Way] = [close_the_response, leave_the_block, cancel_the_task]


async def steps_until_the_next(server: Running, leaver: Leaver, executor: WhoseSteps) -> int:
    """Lets the leaver go while a step is held; how many it is to the next request's first."""
    last = {"model": MODEL, "prompt": [NEXT] * 4, "max_tokens": 1}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: server.client.post(TEXT, json=last))
        await server.wait_busy(running=1, waiting=1)
        leaver.leave.set()
        await server.wait_busy(running=0, waiting=1)
        seen = len(executor.whose)
        executor.gate.set()
    leaver.over.set()
    return executor.whose.index(NEXT) + 1 - seen


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", WAYS)
@trio_test
async def test_in_decode(way: Way, loop: str) -> None:
    executor = WhoseSteps()
    async with serving(executor, context=10**6) as server:
        leaver = Leaver(server.url, [LEAVER])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, leaver, way, loop)
            await until(leaver.streaming.is_set)
            executor.gate.clear()
            assert await steps_until_the_next(server, leaver, executor) <= 2
        await server.wait_rows_free()


@pytest.mark.parametrize("loop", LOOPS)
@trio_test
async def test_in_prefill(loop: str) -> None:
    executor = WhoseSteps()
    executor.gate.clear()
    async with serving(executor, context=10**6) as server:
        leaver = Leaver(server.url, [LEAVER] * LONG_PROMPT)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(in_thread, leaver, cancel_the_task, loop)
            await until(lambda: executor.steps == 1)
            assert await steps_until_the_next(server, leaver, executor) <= 2
        await server.wait_rows_free()


async def in_thread(
    leaver: Leaver, way: Callable[[Leaver, openai.AsyncOpenAI], Awaitable[None]], loop: str
) -> None:
    await trio.to_thread.run_sync(lambda: anyio.run(leaver.run, way, backend=loop))
