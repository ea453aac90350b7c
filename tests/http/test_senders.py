"""Clients that send as few do: slowly, by halves, too much, in odd chunks, in other protocols."""

from __future__ import annotations

import json
from contextlib import AsyncExitStack
from itertools import product

import pytest
import trio

from caldrix.http.config import ServerConfig, Timeouts
from tests.support.serving import MODEL, Running, never_ends, says, serving, trio_test
from tests.support.wire import TEXT, Received, Wire, connected, head, post, unharmed

REQUEST = {"model": MODEL, "prompt": "hi"}
HEALTH = head("GET /healthz HTTP/1.1")
KIBIBYTE, MEBIBYTE = 2**10, 2**20


async def trickle(wire: Wire, data: bytes, seconds: float = 0.0) -> None:
    """Sends a byte at a time, until all is sent or the server has closed."""
    for start in range(len(data)):
        try:
            await wire.send(data[start : start + 1])
        except trio.BrokenResourceError:
            return
        await trio.sleep(seconds)


async def refusal(server: Running, request: bytes) -> Received:
    """The answer to what is refused, after which the connection ends."""
    async with connected(server) as wire:
        await wire.send(request)
        answer = await wire.answer()
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["connection"] == "close"
        assert await wire.rest() == b""
    return answer


async def answer_while_trickling(wire: Wire, data: bytes) -> Received:
    """The answer that comes before all of ``data`` has been sent."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle, wire, data, 0.02)
        answer = await wire.answer()
        nursery.cancel_scope.cancel()
    return answer


async def ends_in_order(wire: Wire) -> None:
    """The connection has ended, and what is on its way does not make that a reset.

    A reset could cost the client its answer.
    """
    for _ in range(2):
        await wire.send(b"x")
        await trio.sleep(0.02)
    assert await wire.rest() == b""


# Slow senders


@trio_test
async def test_a_request_may_come_byte_by_byte() -> None:
    async with serving(says("ok")) as server, unharmed(server), connected(server) as wire:
        for request in (post(REQUEST), chunked(b"2\r\n", b"1\r\n"), post(REQUEST)):
            await trickle(wire, request)
            assert (await wire.answer()).status == 200


@trio_test
async def test_a_head_that_trickles_has_no_more_time_than_another() -> None:
    config = ServerConfig(port=0, timeouts=Timeouts(head=0.2, linger=0.2))
    async with (
        serving(says("ok"), config=config) as server,
        unharmed(server),
        connected(server) as wire,
    ):
        answer = await answer_while_trickling(wire, HEALTH[:-1])
        assert (answer.status, answer.message) == (
            408,
            "the request's head took too long to arrive",
        )
        await ends_in_order(wire)


@pytest.mark.parametrize("chunks", [False, True])
@trio_test
async def test_a_body_that_trickles_has_no_more_time_than_another(chunks: bool) -> None:
    config = ServerConfig(port=0, body_timeout=0.2, timeouts=Timeouts(linger=0.2))
    async with (
        serving(says("ok"), config=config) as server,
        unharmed(server),
        connected(server) as wire,
    ):
        request = chunked(b"2\r\n", b"1\r\n") if chunks else post(REQUEST)
        start, _, body = request.partition(b"\r\n\r\n")
        await wire.send(start + b"\r\n\r\n")
        answer = await answer_while_trickling(wire, body[:-1])
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        await ends_in_order(wire)


# Half-closed sockets


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (b"", []),
        (HEALTH, [200]),
        (HEALTH[:-1], [400]),
        (post(REQUEST), [200]),
        (post(REQUEST)[:-1], [400]),
        (HEALTH + post(REQUEST) * 8 + HEALTH, [200] * 10),
        (HEALTH + HEALTH[:-1], [200, 400]),
        (HEALTH + post(REQUEST)[:-1], [200, 400]),
        (head("GET /nope HTTP/1.1", "Content-Length: 5") + b"he", [404]),
        (head(f"POST {TEXT} HTTP/1.1", "Transfer-Encoding: chunked") + b"5\r\nhe", [400]),
    ],
)
@trio_test
async def test_all_that_was_sent_before_the_end_of_sending_is_answered(
    sent: bytes, statuses: list[int]
) -> None:
    # That there is nothing left to answer is noticed, and not waited for.
    config = ServerConfig(port=0, timeouts=Timeouts(half_closed=1000, linger=1000))
    async with (
        serving(says("ok"), config=config) as server,
        unharmed(server),
        connected(server) as wire,
    ):
        await wire.send(sent)
        await wire.stream.send_eof()
        assert [(await wire.answer()).status for _ in statuses] == statuses
        assert await wire.rest() == b""


@trio_test
async def test_what_was_sent_ahead_has_no_longer_after_the_end_of_sending() -> None:
    executor = never_ends()
    async with (
        serving(executor, context=10**6) as server,
        unharmed(server),
        connected(server) as wire,
    ):
        executor.gate.clear()
        await wire.send(post({**REQUEST, "max_tokens": 1}) + post(REQUEST))
        await wire.stream.send_eof()
        await trio.sleep(0.05)
        executor.gate.set()
        assert (await wire.answer()).status == 200
        assert await wire.rest() == b""


@trio_test
async def test_an_end_of_sending_after_the_answer_began_ends_it_soon() -> None:
    async with (
        serving(never_ends(), context=10**6) as server,
        unharmed(server),
        connected(server) as wire,
    ):
        await wire.send(post({**REQUEST, "stream": True}))
        await wire.until(b'"text":"a"')
        await wire.stream.send_eof()
        # It has no end of its own, so that nobody takes it for a whole answer.
        assert not (await wire.rest()).endswith(b"0\r\n\r\n")


# Heads


@pytest.mark.parametrize(
    "request_head",
    [
        head("GET /healthz HTTP/1.1", "X: " + "x" * 20 * KIBIBYTE),
        head("GET /healthz HTTP/1.1", "x" * 20 * KIBIBYTE + ": x"),
        head("GET /healthz HTTP/1.1", *(f"X-{number}: {number}" for number in range(5000))),
        head("GET /" + "x" * 20 * KIBIBYTE + " HTTP/1.1"),
    ],
    ids=["value", "name", "many", "target"],
)
@trio_test
async def test_a_head_over_its_limit_is_a_431(request_head: bytes) -> None:
    async with serving(says("ok")) as server, unharmed(server):
        # Without its end, and whole, as one read of the socket may well have it.
        for sent in (request_head[:-2], request_head):
            answer = await refusal(server, sent)
            assert (answer.status, answer.message) == (431, "the request's head is too large")


@trio_test
async def test_a_head_within_its_limit_is_taken_whole_or_in_pieces() -> None:
    async with serving(says("ok")) as server, unharmed(server), connected(server) as wire:
        request = head("GET /healthz HTTP/1.1", *(["X: " + "x" * 94] * 160))
        assert 15 * KIBIBYTE < len(request) < 16 * KIBIBYTE
        for size in (len(request), 1000):
            for start in range(0, len(request), size):
                await wire.send(request[start : start + size])
                await trio.sleep(0.001)
            assert (await wire.answer()).body == b"ok"


# Chunked bodies


def chunked(*headers: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A request whose body is chunked; of each chunk the header is given, its size in it."""
    content = json.dumps(REQUEST).encode()
    body = b""
    for header in headers:
        size = int(header.partition(b";")[0], 16)
        piece, content = content[:size], content[size:]
        body += header + piece + b"\r\n"
    body += b"%x\r\n%b\r\n" % (len(content), content)
    return (
        head(
            f"POST {TEXT} HTTP/1.1",
            "Content-Type: application/json",
            "Transfer-Encoding: chunked",
        )
        + body
        + end
    )


@pytest.mark.parametrize(
    "request_bytes",
    [
        chunked(),
        chunked(b"5\r\n", b"0000a\r\n", b"A\r\n"),
        chunked(b"5;name=value\r\n", b'1;a="b;c"\r\n'),
        chunked(end=b"0\r\nX-Checksum: 1\r\nX-Other: 2\r\n\r\n"),
        chunked(end=b"0;last\r\n\r\n"),
    ],
    ids=["one", "sizes", "extensions", "trailer", "last-extension"],
)
@trio_test
async def test_chunks_in_any_form(request_bytes: bytes) -> None:
    async with serving(says("ok")) as server, unharmed(server), connected(server) as wire:
        await wire.send(request_bytes + HEALTH)
        assert (await wire.answer()).status == 200
        # Where the body ended was understood.
        assert (await wire.answer()).body == b"ok"


BEGUN = head(f"POST {TEXT} HTTP/1.1", "Transfer-Encoding: chunked")
TOO_LARGE = "a chunk's header, or the trailer, is too large"


@pytest.mark.parametrize(
    ("body", "status", "beginning"),
    [
        (b"-5\r\nhello\r\n", 400, "the request is not HTTP: "),
        (b"0x5\r\nhello\r\n", 400, "the request is not HTTP: "),
        (b"\r\nhello\r\n", 400, "the request is not HTTP: "),
        (b"f" * 30 + b"\r\nhello\r\n", 400, "the request is not HTTP: "),
        (b"5\r\nhello, world\r\n", 400, "the request is not HTTP: "),
        (b"5;" + b"x" * 100 * KIBIBYTE, 431, TOO_LARGE),
        (b"0\r\nX: " + b"x" * 100 * KIBIBYTE, 431, TOO_LARGE),
        (b"fffffffff\r\n" + b" " * 5 * MEBIBYTE, 413, "the request body is over 4 MiB"),
        (
            (b"1;" + b"x" * 4000 + b"\r\n \r\n") * 2200,
            400,
            "the body's chunks are mostly headers; send larger ones",
        ),
    ],
    ids=["minus", "0x", "none", "huge", "longer", "extension", "trailer", "content", "extensions"],
)
@trio_test
async def test_chunks_that_are_refused(body: bytes, status: int, beginning: str) -> None:
    async with serving(says("ok")) as server, unharmed(server):
        answer = await refusal(server, BEGUN + body)
        assert (answer.status, answer.message[: len(beginning)]) == (status, beginning)


# Other protocols


WEBSOCKET = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
FRAME = b"\x81\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58"


@pytest.mark.parametrize(
    ("version", "status"), [("1.0", 200), ("1.1", 200), ("2.0", 505), ("3.0", 505), ("11", 400)]
)
@trio_test
async def test_an_upgrade_is_not_taken_up_in_any_version(version: str, status: int) -> None:
    async with serving(says("ok")) as server, unharmed(server):
        for upgrade, behind in product(
            [WEBSOCKET, H2C], [b"", FRAME, SETTINGS, PREFACE + SETTINGS]
        ):
            async with connected(server) as wire:
                await wire.send(head(f"GET /healthz HTTP/{version}", *upgrade) + behind)
                await wire.stream.send_eof()
                assert (await wire.answer()).status == status
                # What stands behind is taken for a request, which it is not.
                follows = status == 200 and version == "1.1" and behind
                refusals = (b"HTTP/1.1 400 ", b"HTTP/1.1 505 ")
                after = await wire.rest()
                assert after.startswith(refusals) if follows else after == b""


@trio_test
async def test_an_upgrade_with_a_body_is_a_request_like_any_other() -> None:
    async with serving(says("ok")) as server, unharmed(server), connected(server) as wire:
        for upgrade in (WEBSOCKET, H2C):
            await wire.send(post(REQUEST, *upgrade))
            assert (await wire.answer()).status == 200


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\0\1\0\1\xfc\3\3" + b"\0" * 300, b"\0" * 20_000]
)
@trio_test
async def test_what_is_not_http_at_all_is_refused(garbage: bytes) -> None:
    async with serving(says("ok")) as server, unharmed(server), connected(server) as wire:
        await wire.send(garbage + b"\r\n\r\n")
        assert (await wire.answer()).status in {400, 431}
        assert await wire.rest() == b""


@trio_test
async def test_one_that_is_refused_and_stays_is_not_kept() -> None:
    config = ServerConfig(port=0, timeouts=Timeouts(linger=0.1))
    async with (
        serving(says("ok"), config=config) as server,
        AsyncExitStack() as staying,
        unharmed(server),
    ):
        for request in (b"hello\r\n\r\nhello", BEGUN + b"zz\r\nhello", HEALTH[:-2] + b"a\r\n\r\na"):
            wire = await staying.enter_async_context(connected(server))
            await wire.send(request)
            assert (await wire.answer()).status == 400
