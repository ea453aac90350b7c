"""The engine fails for good: whoever waits is told, health says so, and the server ends too."""

from __future__ import annotations

import json

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from caldrix.http import server as server_module
from tests.support import miniature
from tests.support.losing import loses_its_device
from tests.support.serving import MODEL, Running, serving, trio_test
from tests.support.wire import TEXT, connected, head, post, sent_chunks

REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}
HEALTH = head("GET /healthz HTTP/1.1")
PROMPTLY = 10.0
"""Seconds: far less than what is not waited for, and more than a busy machine needs."""


@trio_test
async def test_the_engines_end_is_told_to_all_and_ends_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 1.5)
    executor = loses_its_device()
    with capture_logs() as logs:
        async with (
            serving(executor, context=10**6) as server,
            connected(server) as running,
            connected(server) as waiting,
            connected(server) as idle,
        ):
            whole: list[httpx2.Response] = []

            async def ask() -> None:
                whole.append(await server.client.post(TEXT, json=REQUEST))

            async with trio.open_nursery() as nursery:
                await running.send(post(STREAM))
                received = await running.until(b'"text":"a"')
                await waiting.send(post(STREAM))
                nursery.start_soon(ask)
                while server.service.engine.waiting < 2:  # noqa: ASYNC110  # no event tells
                    await trio.sleep(0.002)
                executor.lost = True
                # The stream's last event is an error, and then its answer and connection end.
                body = sent_chunks(received + await running.rest())
            last = body.removesuffix(b"\n\n").rpartition(b"\n\n")[2]
            error = json.loads(last.removeprefix(b"data: "))["error"]
            assert error["message"] == "the engine failed during the request"
            # Whoever waited can ask another server.
            answer = await waiting.answer()
            assert (answer.status, answer.message) == (503, "the engine is unavailable")
            assert (whole[0].status_code, whole[0].json()["error"]["type"]) == (503, "server_error")
            # For a moment it says so to those who ask, on connections old and new.
            await idle.send(HEALTH)
            answer = await idle.answer()
            assert (answer.status, answer.headers["connection"]) == (503, "close")
            assert "the engine has failed" in answer.message
            assert (await server.client.get("/health")).status_code == 503
            assert (await server.client.post(TEXT, json=REQUEST)).status_code == 503
            # Then it ends, and nobody is kept.
            with trio.fail_after(PROMPTLY):
                await server.finished.wait()
            assert server.service.engine.failed
            assert await refused(server)
    assert [entry["log_level"] for entry in logs if entry["event"] == "engine_ended"] == ["error"]


async def refused(server: Running) -> bool:
    try:
        async with connected(server):
            return False
    except OSError:
        return True


@trio_test
async def test_a_signal_ends_the_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 10 * PROMPTLY)
    with capture_logs():
        async with serving(loses_its_device(at_once=True)) as server:
            assert (await server.client.post(TEXT, json=REQUEST)).status_code == 500
            await server.service.engine.ended.wait()
            server.shutdown.request()
            with trio.fail_after(PROMPTLY):
                await server.finished.wait()


@trio_test
async def test_a_reader_that_does_not_read_does_not_hold_up_that_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 0.2)
    executor = loses_its_device(miniature.LONG)
    with capture_logs() as logs:
        async with serving(executor, context=10**6) as server, connected(server) as stalled:
            await stalled.send(post(STREAM))
            await trio.sleep(0.2)
            executor.lost = True
            with trio.fail_after(PROMPTLY):
                await server.finished.wait()
    assert "connections_cut" in [entry["event"] for entry in logs]
