"""The faults of the stack below, each shown to be gone, by bytes on a socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator

import pytest
import trio

from caldrix.http.config import ServerConfig, Timeouts
from tests.support import miniature
from tests.support.serving import MODEL, Running, never_ends, says, serving, trio_test
from tests.support.wire import TEXT, connected, head, post

REQUEST = {"model": MODEL, "prompt": "hi"}


async def assert_well(server: Running) -> None:
    """The server still answers, and no request is left in its engine."""
    assert (await server.client.get("/healthz")).text == "ok"
    await server.wait_rows_free()


def with_timeouts(**seconds: float) -> ServerConfig:
    return ServerConfig(port=0, timeouts=Timeouts(**seconds))


@trio_test
async def test_2_a_stream_may_take_its_time_and_a_body_may_not() -> None:
    # What Quart would cut by default is off; only the body's arrival has a limit.
    async with serving(says("ok"), config=ServerConfig(port=0, body_timeout=0.1)) as server:
        async with connected(server) as wire:
            await wire.send(post(REQUEST)[:-3])
            answer = await wire.answer()
            assert (answer.status, answer.headers["connection"]) == (408, "close")
            assert answer.message == "the request body did not arrive within 0.1 seconds"
            assert await wire.rest() == b""
        executor = never_ends()
        await assert_well(server)
    async with serving(executor, config=ServerConfig(port=0, body_timeout=0.1)) as server:
        async with server.client.stream(
            "POST", TEXT, json={**REQUEST, "stream": True, "max_tokens": 3}
        ) as response:
            pieces = response.aiter_raw()
            received = await anext(pieces)
            executor.gate.clear()
            await trio.sleep(0.3)
            executor.gate.set()
            received += b"".join([piece async for piece in pieces])
        assert received.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("trailing", [b"", b"x", b"\x81\x05hello", b"\r\n"])
@pytest.mark.parametrize("path", ["/healthz", "/nope"])
@trio_test
async def test_3_an_upgrade_is_answered_as_if_it_had_not_asked(path: str, trailing: bytes) -> None:
    async with serving(says("ok")) as server:
        async with connected(server) as wire:
            upgrade = (
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            )
            await wire.send(head(f"GET {path} HTTP/1.1", *upgrade) + trailing)
            answer = await wire.answer()
            if path == "/healthz":
                assert answer.body == b"ok"
            else:
                assert answer.status == 404
        await assert_well(server)


@trio_test
async def test_3_http_2_is_not_spoken() -> None:
    async with serving(says("ok")) as server:
        async with connected(server) as wire:
            await wire.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            answer = await wire.answer()
            assert (answer.status, answer.message) == (505, "this server speaks HTTP/1.1")
        async with connected(server) as wire:
            upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA")
            await wire.send(head("GET /healthz HTTP/1.1", *upgrade))
            assert (await wire.answer()).body == b"ok"
        await assert_well(server)


@trio_test
async def test_4_a_reader_that_does_not_read_is_ended() -> None:
    config = with_timeouts(write=0.2)
    executor = never_ends(miniature.LONG)
    async with serving(executor, rows=2, context=10**6, config=config) as server:
        async with connected(server) as stalled:
            await stalled.send(post({**REQUEST, "stream": True}))
            # Its peer is served meanwhile, and then its row is free.
            response = await server.client.post(TEXT, json={**REQUEST, "max_tokens": 3})
            assert len(response.json()["choices"][0]["text"]) == 3 * len(miniature.LONG)
            await server.wait_rows_free()
        await assert_well(server)


@trio_test
async def test_4_a_reader_that_does_not_read_does_not_hold_up_shutdown() -> None:
    config = ServerConfig(port=0, drain_timeout=0.1)
    executor = never_ends(miniature.LONG)
    async with serving(executor, config=config) as server, connected(server) as stalled:
        await stalled.send(post({**REQUEST, "stream": True}))
        await stalled.stream.receive_some(100)
        server.shutdown.request()
        with trio.fail_after(5):
            await server.finished.wait()


@pytest.mark.parametrize("stream_it", [False, True])
@trio_test
async def test_6_a_client_that_ends_its_sending_still_gets_quick_answers(stream_it: bool) -> None:
    async with serving(says("ok")) as server:
        async with connected(server) as wire:
            await wire.send(post({**REQUEST, "stream": stream_it}))
            await wire.stream.send_eof()
            received = await wire.rest()
            assert received.startswith(b"HTTP/1.1 200")
            assert received.endswith(b"0\r\n\r\n" if stream_it else b"}}")
        await assert_well(server)


@trio_test
async def test_6_a_client_that_ends_its_sending_is_not_served_for_ever() -> None:
    async with serving(never_ends(), context=10**6) as server:
        async with connected(server) as wire:
            await wire.send(post(REQUEST))
            await wire.stream.send_eof()
            assert await wire.rest() == b""
        await assert_well(server)


# What the HTTP parser itself refuses: (bytes, status, the message's beginning)
NOT_HTTP = [
    (b"hello\r\n\r\n", 400, 'the request is not HTTP: illegal request line: "hello"'),
    (head("GET / HTTP/1.1", "a'b"), 400, 'the request is not HTTP: illegal header line: "a\'b"'),
    (
        head(f"POST {TEXT} HTTP/1.1", "Content-Length: 5", "Transfer-Encoding: chunked"),
        400,
        "send Content-Length or Transfer-Encoding, not both",
    ),
    (b"GET /healthz HTTP/1.1\r\n\r\n", 400, "the request is not HTTP: "),
    (head("GET /healthz HTTP/1.1", "Host: other"), 400, "the request is not HTTP: "),
    (head("GET healthz HTTP/1.1"), 400, "the request's target must be a path"),
    (head("GET ?a=b HTTP/1.1"), 400, "the request's target must be a path"),
    (head("get /healthz HTTP/1.1"), 501, "the method is unknown; methods are written in capitals"),
    (head("CONNECT a:1 HTTP/1.1"), 400, "the request's target must be a path"),
    (head("GET / HTTP/1.1", "X: " + "x" * 2**17), 431, "the request's head is too large"),
    (head("POST / HTTP/1.1", "Content-Length: -1"), 400, "the request is not HTTP: "),
    (head("POST / HTTP/1.1", "Transfer-Encoding: gzip"), 501, "the request is not HTTP: "),
    (
        head(f"POST {TEXT} HTTP/1.1", "Transfer-Encoding: chunked") + b"zz\r\n",
        400,
        r'the request is not HTTP: illegal chunk header: "zz\r\n"',
    ),
    (head("OPTIONS * HTTP/1.1", "Connection: close"), 404, "there is nothing at "),
    (head("GET /%ff%00%C3%A9 HTTP/1.1", "Connection: close"), 404, "there is nothing at /"),
]


@pytest.mark.parametrize(("request_bytes", "status", "beginning"), NOT_HTTP)
@trio_test
async def test_7_the_parsers_refusals_are_error_objects(
    request_bytes: bytes, status: int, beginning: str
) -> None:
    async with serving(says("ok")) as server:
        async with connected(server) as wire:
            await wire.send(request_bytes)
            answer = await wire.answer()
            assert answer.status == status
            assert answer.headers["content-type"] == "application/json"
            assert answer.message.startswith(beginning)
            assert "bytearray" not in answer.message
            assert await wire.rest() == b""
        await assert_well(server)


MEBIBYTE = 2**20


@trio_test
async def test_7_a_body_over_the_limit_is_a_413() -> None:
    async with serving(says("ok")) as server:
        most = 4 * MEBIBYTE
        fits = json.dumps({**REQUEST, "prompt": [""]}).ljust(most)
        response = await server.client.post(
            TEXT, content=fits, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "prompt"

        # Declared: refused before a byte of it is sent, or asked for.
        for expectation in ((), ("Expect: 100-continue",)):
            async with connected(server) as wire:
                lines = (f"Content-Length: {most + 1}", *expectation)
                await wire.send(head(f"POST {TEXT} HTTP/1.1", *lines))
                answer = await wire.answer()
                assert (answer.status, answer.headers["connection"]) == (413, "close")
                assert answer.message == "the request body is over 4 MiB"

        # Sent in chunks, and all the same when the client sends it all before it reads.
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(9):
                yield b" " * MEBIBYTE

        for content in (chunks(), b" " * (9 * MEBIBYTE)):
            response = await server.client.post(TEXT, content=content)
            assert response.status_code == 413
            assert response.json()["error"]["message"] == "the request body is over 4 MiB"
        await assert_well(server)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@trio_test
async def test_8_a_connection_that_is_to_be_closed_is_closed(version: str) -> None:
    async with serving(says("ok")) as server:
        for request in (
            head(f"GET /healthz HTTP/{version}", "Connection: close"),
            post({**REQUEST, "stream": True}, "Connection: close"),
        ):
            async with connected(server) as wire:
                await wire.send(request)
                received = await wire.rest()
                assert received.startswith(b"HTTP/1.1 200")
                assert b"connection: close" in received.lower()


@trio_test
async def test_requests_sent_ahead_are_answered_in_order() -> None:
    async with serving(says("ok")) as server, connected(server) as wire:
        ask = head("GET /healthz HTTP/1.1")
        await wire.send(ask + post(REQUEST) + head("GET /nope HTTP/1.1") + ask[:9])
        answers = [await wire.answer() for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 404]
        assert json.loads(answers[1].body)["id"] == "cmpl-1"
        await wire.send(ask[9:])
        assert (await wire.answer()).body == b"ok"


@trio_test
async def test_ends_of_line_before_a_request_are_passed_over() -> None:
    async with serving(says("ok")) as server, connected(server) as wire:
        ask = head("GET /healthz HTTP/1.1")
        # As some clients end a body, between requests, and in pieces.
        for pieces in ([b"\r\n" + ask], [post(REQUEST) + b"\r\n" + ask], [b"\r", b"\n", ask]):
            for piece in pieces:
                await wire.send(piece)
                await trio.sleep(0.01)
            if len(pieces[0]) > len(ask) + 2:
                assert (await wire.answer()).status == 200
            assert (await wire.answer()).body == b"ok"


@trio_test
async def test_a_client_that_resets_is_noticed_at_once() -> None:
    # However long one that has only ended its sending would be waited for.
    config = with_timeouts(half_closed=1000)
    async with serving(never_ends(), context=10**6, config=config) as server:
        async with connected(server) as wire:
            await wire.send(post(REQUEST))
            await trio.sleep(0.05)
            wire.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await server.wait_rows_free()


@trio_test
async def test_a_client_that_sent_ahead_and_left_is_noticed() -> None:
    async with serving(never_ends(), context=10**6) as server:
        async with connected(server) as wire:
            await wire.send(post(REQUEST) + b"\r\n")
            await trio.sleep(0.05)
        await server.wait_rows_free()


@trio_test
async def test_many_requests_sent_ahead_do_not_fill_the_memory() -> None:
    executor = never_ends()
    executor.gate.clear()
    async with serving(executor) as server, connected(server) as wire:
        await wire.send(post({**REQUEST, "max_tokens": 1}))
        flood = head("GET /healthz HTTP/1.1", "X: " + "x" * 10_000)
        sent = 0
        with trio.move_on_after(0.5):
            while True:
                await wire.send(flood)
                sent += 1
        # The sender is held back by what the sockets hold, and goes on once served.
        assert sent * len(flood) < 64 * MEBIBYTE
        executor.gate.set()
        assert (await wire.answer()).status == 200
        assert (await wire.answer()).body == b"ok"


@trio_test
async def test_a_head_that_does_not_come_is_not_waited_for() -> None:
    config = with_timeouts(head=0.1)
    ask = head("GET /healthz HTTP/1.1")
    for begun in (ask + b"GET /healthz HT", ask[:-1]):
        async with serving(says("ok"), config=config) as server, connected(server) as wire:
            await wire.send(begun)
            if begun.startswith(ask):
                assert (await wire.answer()).body == b"ok"
            answer = await wire.answer()
            assert (answer.status, answer.message) == (
                408,
                "the request's head took too long to arrive",
            )
            assert await wire.rest() == b""


@trio_test
async def test_an_idle_connection_is_closed_after_a_while() -> None:
    async with (
        serving(says("ok"), config=with_timeouts(keep_alive=0.1)) as server,
        connected(server) as fresh,
        connected(server) as used,
    ):
        await used.send(head("GET /healthz HTTP/1.1"))
        await used.answer()
        assert await fresh.rest() == b""
        assert await used.rest() == b""


@trio_test
async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async with serving(says("ok")) as server, connected(server) as wire:
        content = json.dumps(REQUEST).encode()
        await wire.send(
            head(
                f"POST {TEXT} HTTP/1.1",
                "Content-Type: application/json",
                f"Content-Length: {len(content)}",
                "Expect: 100-continue",
            )
        )
        assert await wire.until(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
        await wire.send(content)
        assert (await wire.answer()).status == 200


@trio_test
async def test_an_unread_body_does_not_become_the_next_request() -> None:
    async with serving(says("ok")) as server, connected(server) as wire:
        smuggled = head("GET /v1/models HTTP/1.1")
        lines = f"Content-Length: {len(smuggled) + 5}"
        await wire.send(head("POST /nope HTTP/1.1", lines))
        answer = await wire.answer()
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        await wire.send(smuggled)
        assert await wire.rest() == b""
