"""A client that leaves, at any stage, in order or with a reset: nothing of it stays behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs

from caldrix.http.config import ServerConfig, Timeouts
from tests.support import miniature
from tests.support.scripted import ScriptedExecutor
from tests.support.serving import MODEL, Running, never_ends, serving, trio_test
from tests.support.wire import TEXT, Wire, connected, head, post, reset, unharmed

REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}
MEBIBYTE = 2**20

Stage = Callable[[Running, Wire, ScriptedExecutor], Awaitable[None]]


async def before_a_request(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    pass


async def in_the_head(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post(REQUEST)[:20])


async def in_the_body(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post(REQUEST)[:-5])


async def in_a_chunk(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(head(f"POST {TEXT} HTTP/1.1", "Transfer-Encoding: chunked") + b"ff\r\n{")


async def in_a_body_too_large(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(head(f"POST {TEXT} HTTP/1.1", f"Content-Length: {9 * MEBIBYTE}"))
    await wire.send(b" " * MEBIBYTE)
    await wire.until(b"413")


async def in_a_refused_body(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    lines = (f"Content-Length: {2 * MEBIBYTE}", "Expect: 100-continue")
    await wire.send(head("POST /nope HTTP/1.1", *lines))
    await wire.send(b" " * MEBIBYTE)
    await wire.until(b"404")


async def in_the_queue(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    async with connected(server) as other:
        await other.send(post(STREAM))
        await server.wait_busy(running=1)
        await wire.send(post(REQUEST))
        await server.wait_busy(running=1, waiting=1)


async def in_the_prefill(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    executor.gate.clear()
    await wire.send(post({**STREAM, "prompt": [1] * 2000}))
    await server.wait_busy(running=1)


async def in_the_decode(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post(REQUEST))
    await server.wait_busy(running=1)
    await trio.sleep(0.01)


async def in_a_stream(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post(STREAM))
    await wire.until(b'"text":"a"')


async def before_the_last_byte(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post({**STREAM, "max_tokens": 3}))
    await wire.until(b"[DONE]")


async def after_the_last_byte(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post({**STREAM, "max_tokens": 3}))
    await wire.until(b"\r\n0\r\n\r\n")


async def after_sending_ahead(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    await wire.send(post(STREAM) + post(STREAM) + post(REQUEST)[:30])
    await wire.until(b'"text":"a"')


async def in_a_silence(server: Running, wire: Wire, executor: ScriptedExecutor) -> None:
    executor.gate.clear()
    await wire.send(post(STREAM))
    await wire.until(b": keep-alive\n\n")


STAGES: list[Stage] = [
    before_a_request,
    in_the_head,
    in_the_body,
    in_a_chunk,
    in_a_body_too_large,
    in_a_refused_body,
    in_the_queue,
    in_the_prefill,
    in_the_decode,
    in_a_stream,
    before_the_last_byte,
    after_the_last_byte,
    after_sending_ahead,
    in_a_silence,
]


@asynccontextmanager
async def a_server(executor: ScriptedExecutor) -> AsyncIterator[Running]:
    timeouts = Timeouts(half_closed=0.05, comment=0.05, linger=0.1)
    config = ServerConfig(port=0, timeouts=timeouts)
    async with serving(executor, context=10**6, config=config) as server:
        yield server


@pytest.mark.parametrize("resets", [False, True], ids=["closes", "resets"])
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
@trio_test
async def test_a_client_that_leaves_is_gone(stage: Stage, resets: bool) -> None:
    executor = never_ends()
    with capture_logs() as logs:
        async with a_server(executor) as server, unharmed(server):
            async with connected(server) as wire:
                await stage(server, wire, executor)
                if resets:
                    reset(wire)
            if not executor.gate.is_set():
                # The step that runs is let through once the server has seen the client go.
                await trio.sleep(0.1)
                steps = executor.steps
                executor.gate.set()
                await server.wait_rows_free()
                assert executor.steps == steps
    # It is nothing to tell of.
    assert [entry for entry in logs if entry["log_level"] not in {"info", "debug"}] == []


@pytest.mark.parametrize("resets", [False, True], ids=["closes", "resets"])
@trio_test
async def test_a_client_that_leaves_while_it_is_being_written_to_is_gone(resets: bool) -> None:
    executor = never_ends(miniature.LONG)
    async with a_server(executor) as server, unharmed(server), connected(server) as wire:
        await wire.send(post(STREAM))
        # It reads nothing: what the sockets hold is full after a while.
        await trio.sleep(0.1)
        if resets:
            reset(wire)


@trio_test
async def test_the_queue_moves_on_past_those_who_left() -> None:
    async with (
        a_server(never_ends()) as server,
        unharmed(server),
        connected(server) as first,
        connected(server) as second,
        connected(server) as third,
        connected(server) as last,
    ):
        await first.send(post(STREAM))
        await server.wait_busy(running=1)
        await second.send(post(STREAM))
        await third.send(post(REQUEST))
        await server.wait_busy(running=1, waiting=2)
        await last.send(post({**REQUEST, "max_tokens": 2}))
        await server.wait_busy(running=1, waiting=3)
        await second.stream.aclose()
        await third.stream.aclose()
        await server.wait_busy(running=1, waiting=1)
        await first.stream.aclose()
        assert (await last.answer()).status == 200
