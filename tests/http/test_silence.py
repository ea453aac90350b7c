"""A stream that is silent for long carries comments, from before its first event on."""

from __future__ import annotations

import json

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from caldrix.http.config import ServerConfig, Timeouts
from caldrix.text.assembler import TextAssembler
from tests.support.scripted import ScriptedExecutor, endless
from tests.support.seen import FAILED, UNFORESEEN
from tests.support.serving import MODEL, Running, never_ends, scripted, serving, trio_test
from tests.support.wire import TEXT, Wire, connected, head, post, sent_chunks, unharmed

STREAM = {"model": MODEL, "prompt": "hi", "stream": True, "max_tokens": 3}
COMMENT = b": keep-alive\n\n"


def commenting(seconds: float = 0.05, **others: float) -> ServerConfig:
    return ServerConfig(port=0, timeouts=Timeouts(comment=seconds, **others))


def closed(executor: ScriptedExecutor) -> ScriptedExecutor:
    executor.gate.clear()
    return executor


async def comments(wire: Wire, count: int) -> bytes:
    """What comes up to that many comments; each is a chunk of its own."""
    return b"".join([await wire.until(COMMENT + b"\r\n") for _ in range(count)])


async def whole_answer(wire: Wire, received: bytes) -> list[bytes]:
    """The events of an answer that began with ``received``, without its comments."""
    body = sent_chunks(received + await wire.until(b"\r\n0\r\n\r\n"))
    events = body.split(b"\n\n")
    assert events.pop() == b""
    return [event for event in events if event + b"\n\n" != COMMENT]


@trio_test
async def test_comments_come_before_the_first_event_and_between_events() -> None:
    executor = never_ends()
    async with serving(executor, config=commenting()) as server, unharmed(server):
        async with connected(server) as wire:
            executor.gate.clear()
            await wire.send(post(STREAM))
            received = await comments(wire, 2)
            assert received.startswith(b"HTTP/1.1 200 ")
            assert b"content-type: text/event-stream" in received
            assert b"data: " not in received
            executor.gate.set()
            events = await whole_answer(wire, received)
            assert len(events) == 5
            assert events[-1] == b"data: [DONE]"

            await wire.send(post({**STREAM, "max_tokens": 10_000}))
            received = await wire.until(b'"text":"a"')
            executor.gate.clear()
            received += await comments(wire, 2)
            executor.gate.set()
        await server.wait_rows_free()


@trio_test
async def test_a_queued_stream_has_comments_until_its_turn() -> None:
    async with (
        serving(never_ends(), context=10**6, config=commenting()) as server,
        unharmed(server),
        connected(server) as queued,
    ):
        async with connected(server) as first:
            await first.send(post({**STREAM, "max_tokens": None}))
            await first.until(b'"text":"a"')
            await queued.send(post(STREAM))
            received = await comments(queued, 1)
        assert (await whole_answer(queued, received))[-1] == b"data: [DONE]"


@trio_test
async def test_an_error_after_a_comment_is_the_last_event() -> None:
    executor = closed(scripted(endless(0), fail_at=(1, 2)))
    async with serving(executor, config=commenting()) as server, connected(server) as wire:
        await wire.send(post(STREAM))
        received = await comments(wire, 1)
        executor.gate.set()
        (event,) = await whole_answer(wire, received)
        assert json.loads(event.removeprefix(b"data: ")) == {"error": FAILED}
        # It ended as an answer should: its connection serves the next request.
        await wire.send(head("GET /healthz HTTP/1.1"))
        assert (await wire.answer()).body == b"ok"


@trio_test
async def test_a_failure_nobody_foresaw_is_an_event_then_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(assembler: TextAssembler, token: int) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(TextAssembler, "push", fail)
    executor = closed(never_ends())
    with capture_logs() as logs:
        async with serving(executor, config=commenting()) as server, connected(server) as wire:
            await wire.send(post(STREAM))
            received = await comments(wire, 1)
            executor.gate.set()
            (event,) = await whole_answer(wire, received)
    assert json.loads(event.removeprefix(b"data: ")) == {"error": UNFORESEEN}
    assert [entry["log_level"] for entry in logs if entry["event"] == "request_failed"] == ["error"]


@pytest.mark.parametrize("ends", ["queued", "prefill"])
@trio_test
async def test_a_client_that_leaves_a_silent_stream_is_noticed(ends: str) -> None:
    executor = never_ends()
    config = commenting(half_closed=0.05)
    async with serving(executor, context=10**6, config=config) as server, unharmed(server):
        if ends == "queued":
            async with connected(server) as first:
                await first.send(post({**STREAM, "max_tokens": None}))
                await first.until(b'"text":"a"')
                await _leave_after_a_comment(server)
                with trio.fail_after(5):
                    while server.service.engine.waiting:  # noqa: ASYNC110  # no event
                        await trio.sleep(0.002)
        else:
            executor.gate.clear()
            await _leave_after_a_comment(server)
            await trio.sleep(0.1)
            executor.gate.set()


async def _leave_after_a_comment(server: Running) -> None:
    async with connected(server) as wire:
        await wire.send(post(STREAM))
        await comments(wire, 1)


@trio_test
async def test_comments_never_get_into_an_event() -> None:
    # As many comments as events, at any moment.
    async with serving(never_ends(), config=commenting(0.0002)) as server:
        response = await server.client.post(TEXT, json={**STREAM, "max_tokens": 1000})
        assert response.content.count(COMMENT) > 100
        events = response.content.replace(COMMENT, b"").split(b"\n\n")
        assert [events.pop(), events.pop()] == [b"", b"data: [DONE]"]
        texts = [
            json.loads(event.removeprefix(b"data: "))["choices"][0]["text"] for event in events
        ]
        assert "".join(texts) == "a" * 1000


@trio_test
async def test_an_answer_in_one_piece_has_none() -> None:
    executor = closed(never_ends())
    async with serving(executor, config=commenting()) as server:
        answers: list[httpx2.Response] = []

        async def ask() -> None:
            answers.append(await server.client.post(TEXT, json={**STREAM, "stream": False}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.15)
            executor.gate.set()
        assert answers[0].json()["choices"][0]["text"] == "aaa"


@trio_test
async def test_to_http_1_0_a_comment_comes_without_chunks() -> None:
    executor = closed(never_ends())
    async with serving(executor, config=commenting()) as server, connected(server) as wire:
        await wire.send(post(STREAM).replace(b"HTTP/1.1", b"HTTP/1.0", 1))
        received = await wire.until(COMMENT)
        assert received.endswith(b"\r\n\r\n" + COMMENT)
        executor.gate.set()
        assert (await wire.rest()).endswith(b"data: [DONE]\n\n")
