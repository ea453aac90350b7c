"""A request that does not end as it hoped: full queues, failures, clients that leave, shutdown."""

from __future__ import annotations

import json

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from caldrix.http.config import ServerConfig
from tests.support.scripted import ScriptedExecutor, endless
from tests.support.serving import MODEL, Running, never_ends, says, scripted, serving, trio_test
from tests.support.wire import TEXT, connected, post, sent_chunks, streaming

REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}
PROMPTLY = 10.0
"""Seconds: less than the drain timeout, and more than a busy machine needs."""
FAILED = {
    "code": None,
    "message": "the engine failed during the request",
    "param": None,
    "type": "server_error",
}
UNAVAILABLE = {**FAILED, "message": "the engine is unavailable"}
FULL = {**FAILED, "message": "the request queue is full", "type": "rate_limit_error"}


def closed_gate() -> ScriptedExecutor:
    executor = never_ends()
    executor.gate.clear()
    return executor


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_full_queue_is_a_429_at_once(body: dict[str, object]) -> None:
    async with serving(never_ends(), queue_depth=0) as server:
        async with streaming(server):
            response = await server.client.post(TEXT, json=body)
            assert response.status_code == 429
            # Clients space their tries better than one number for all of them would.
            assert "retry-after" not in response.headers
            assert response.json()["error"] == FULL
        await server.wait_rows_free()


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_stopped_engine_is_a_503(body: dict[str, object]) -> None:
    async with serving(says("ok")) as server:
        server.service.engine.stop()
        response = await server.client.post(TEXT, json=body)
        assert response.status_code == 503
        assert response.json()["error"] == UNAVAILABLE


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_failure_before_the_first_token_is_a_500(body: dict[str, object]) -> None:
    async with serving(scripted(endless(0), fail_at=(1,))) as server:
        response = await server.client.post(TEXT, json=body)
        assert response.status_code == 500
        assert response.headers["content-type"] == "application/json"
        assert response.json()["error"] == FAILED
        # The next request has its chance, on the same connection.
        assert (await server.client.post(TEXT, json={**body, "max_tokens": 1})).status_code == 200


@trio_test
async def test_a_failure_later_is_the_streams_last_event() -> None:
    async with serving(scripted(endless(0), fail_at=(3,))) as server:
        response = await server.client.post(TEXT, json=STREAM)
        assert response.status_code == 200
        *chunks, last, rest = response.text.split("\n\n")
        assert rest == ""
        assert len(chunks) == 2
        assert json.loads(last.removeprefix("data: ")) == {"error": FAILED}
        whole = await server.client.post(TEXT, json={**REQUEST, "max_tokens": 1})
        assert whole.status_code == 200


@trio_test
async def test_a_failure_nobody_foresaw_is_a_500_that_says_nothing() -> None:
    with capture_logs() as logs:
        async with serving(says("ok")) as server:
            object.__setattr__(server.service, "served_name", {1})  # no JSON for a set
            response = await server.client.get("/v1/models")
            assert response.status_code == 500
            assert response.json()["error"] == {
                **FAILED,
                "message": "the server failed on this request; its log says why",
            }
            assert (await server.client.get("/healthz")).text == "ok"
    assert [entry["log_level"] for entry in logs if entry["event"] == "request_failed"] == ["error"]


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_client_that_leaves_in_decode_frees_its_row(body: dict[str, object]) -> None:
    executor = never_ends()
    async with serving(executor) as server:
        with trio.move_on_after(0.1):
            await server.client.post(TEXT, json=body)
        await server.wait_rows_free()
        assert executor.steps > 2
        assert (await server.client.post(TEXT, json={**REQUEST, "max_tokens": 1})).is_success


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_client_that_leaves_in_prefill_frees_its_row(body: dict[str, object]) -> None:
    executor = closed_gate()
    async with serving(executor, context=10_000) as server:
        long_prompt = {**body, "prompt": [1] * 2000}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_post_and_be_cancelled, server, long_prompt)
            await server.wait_busy(running=1)
            nursery.cancel_scope.cancel()
        # The step that runs is let through once the server has seen the client go.
        await trio.sleep(0.4)
        executor.gate.set()
        await server.wait_rows_free()
        assert executor.steps == 1


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_client_that_leaves_the_queue_gives_up_its_place(body: dict[str, object]) -> None:
    async with serving(never_ends(), queue_depth=1) as server:
        async with streaming(server):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_post_and_be_cancelled, server, body)
                await server.wait_busy(running=1, waiting=1)
                nursery.cancel_scope.cancel()
            await server.wait_busy(running=1, waiting=0)
        await server.wait_rows_free()


async def _post_and_be_cancelled(server: Running, body: dict[str, object]) -> None:
    await server.client.post(TEXT, json=body)


@trio_test
async def test_shutdown_lets_requests_end() -> None:
    executor = never_ends()
    async with serving(executor) as server, connected(server) as wire:
        await wire.send(post({**STREAM, "max_tokens": 200}))
        received = await wire.until(b'"text":"a"')
        executor.gate.clear()
        server.shutdown.request()
        assert await refuses_connections(server)
        executor.gate.set()
        body = sent_chunks(received + await wire.rest())
        assert body.endswith(b"data: [DONE]\n\n")
        assert body.count(b'"text":"a"') == 200
        await server.finished.wait()


@trio_test
async def test_shutdown_lets_those_have_their_turn_who_wait_or_still_send() -> None:
    async with (
        serving(never_ends()) as server,
        connected(server) as running,
        connected(server) as waiting,
        connected(server) as sending,
    ):
        request = post({**REQUEST, "max_tokens": 2})
        await running.send(post({**STREAM, "max_tokens": 1000}))
        await server.wait_busy(running=1)
        await waiting.send(request)
        await server.wait_busy(running=1, waiting=1)
        await sending.send(request[:-5])
        await trio.sleep(0.02)
        server.shutdown.request()
        await sending.send(request[-5:])
        for wire in (waiting, sending):
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (200, "close")
            assert await wire.rest() == b""
        assert (await running.rest()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        with trio.fail_after(PROMPTLY):
            await server.finished.wait()


@trio_test
async def test_shutdown_answers_what_is_at_hand_and_not_what_was_sent_ahead() -> None:
    executor = closed_gate()
    async with serving(executor) as server, connected(server) as wire:
        await wire.send(post({**REQUEST, "max_tokens": 2}) * 3)
        await server.wait_busy(running=1)
        server.shutdown.request()
        await trio.sleep(0.02)
        executor.gate.set()
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await wire.rest() == b""
        with trio.fail_after(PROMPTLY):
            await server.finished.wait()


async def refuses_connections(server: Running) -> bool:
    for _ in range(200):
        try:
            async with connected(server):
                pass
        except OSError:
            return True
        await trio.sleep(0.01)
    return False


@trio_test
async def test_shutdown_ends_what_does_not_end() -> None:
    config = ServerConfig(port=0, drain_timeout=0.1)
    async with serving(never_ends(), context=10**6, config=config) as server:
        async with connected(server) as wire:
            await wire.send(post(STREAM))
            received = await wire.until(b'"text":"a"')
            server.shutdown.request()
            body = sent_chunks(received + await wire.rest())
        *_, last, rest = body.decode().split("\n\n")
        assert rest == ""
        assert json.loads(last.removeprefix("data: ")) == {"error": UNAVAILABLE}
        await server.finished.wait()


@trio_test
async def test_asked_twice_it_does_not_wait() -> None:
    async with serving(never_ends(), context=10**6) as server:
        waiting: list[httpx2.Response] = []

        async def wait_in_the_queue() -> None:
            waiting.append(await server.client.post(TEXT, json=REQUEST))

        async with trio.open_nursery() as nursery, streaming(server):
            nursery.start_soon(wait_in_the_queue)
            await server.wait_busy(running=1, waiting=1)
            server.shutdown.request()
            await trio.sleep(0.05)
            assert not server.finished.is_set()
            server.shutdown.request()
        assert waiting[0].status_code == 503
        assert waiting[0].json()["error"] == UNAVAILABLE
        await server.finished.wait()


@trio_test
async def test_shutdown_closes_idle_connections_at_once() -> None:
    async with serving(says("ok")) as server, connected(server) as idle:
        assert (await server.client.get("/healthz")).is_success
        server.shutdown.request()
        with trio.fail_after(PROMPTLY):
            assert await idle.rest() == b""
            await server.finished.wait()
