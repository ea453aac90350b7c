"""HTTP/1.1 as clients speak it, well and badly, over sockets of the cases' own."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.raw import RawAnswer, request_bytes
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

CLOSES_WITHIN = 10.0
"""Seconds; a server that closes does it at once, one that doesn't keeps it for minutes."""
MOMENT = 2.0
"""Seconds of silence after which nothing more is waited for."""


def listing(target: Target, **headers: str) -> bytes:
    """A request for the list of models."""
    return request_bytes("GET", "/v1/models", target.host_header, None, **headers)


def expect_ok(answer: RawAnswer) -> None:
    assert answer.status == 200, f"wanted 200, got {answer.seen}"


def expect_text(answer: RawAnswer, endpoint: Endpoint) -> None:
    expect_ok(answer)
    text = answer.text(endpoint)
    assert isinstance(text, str), f"the text is {text!r}; {answer.seen}"


@checks("wire.connection.kept")
def test_kept(target: Target) -> None:
    with target.connection() as connection:
        for _ in range(3):
            connection.send(listing(target))
            answer = connection.answer()
            expect_ok(answer)
            if answer.closes:
                return


@checks("wire.connection.pipelined")
def test_pipelined(target: Target, some_endpoint: Endpoint) -> None:
    body = target.body(some_endpoint, {})
    asking = request_bytes("POST", some_endpoint.path, target.host_header, body)
    with target.connection() as connection:
        connection.send(listing(target) + asking + listing(target))
        for member in (b'"data"', b'"choices"', b'"data"'):
            answer = connection.answer()
            expect_ok(answer)
            assert member in answer.body, f"out of order: wanted {member.decode()}, {answer.seen}"
            if answer.closes:
                return


@checks("wire.connection.close")
def test_close(target: Target) -> None:
    with target.connection() as connection:
        connection.send(listing(target, Connection="close"))
        expect_ok(connection.answer())
        assert connection.closes_within(CLOSES_WITHIN), "the connection stays open"


@checks("wire.connection.half-closed")
def test_half_closed(target: Target) -> None:
    with target.connection() as connection:
        connection.send(listing(target))
        connection.end_sending()
        expect_ok(connection.answer())


@checks("wire.connection.after-stream")
def test_after_stream(target: Target, some_endpoint: Endpoint) -> None:
    body = target.body(some_endpoint, {"stream": True})
    with target.connection() as connection:
        connection.send(request_bytes("POST", some_endpoint.path, target.host_header, body))
        stream = connection.answer()
        expect_ok(stream)
        if stream.closes:
            return
        connection.send(listing(target))
        expect_ok(connection.answer())


def old_request(method: str, path: str, host: str, value: object = None) -> bytes:
    """A request of HTTP/1.0."""
    return request_bytes(method, path, host, value).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


@checks("wire.http10.answer")
def test_http10(target: Target) -> None:
    with target.connection() as connection:
        connection.send(old_request("GET", "/v1/models", target.host_header))
        expect_ok(connection.answer())
        assert connection.closes_within(CLOSES_WITHIN), "the connection stays open"


@checks("wire.http10.stream")
def test_http10_stream(target: Target, some_endpoint: Endpoint) -> None:
    body = target.body(some_endpoint, {"stream": True})
    with target.connection() as connection:
        connection.send(old_request("POST", some_endpoint.path, target.host_header, body))
        answer = connection.everything(within=MOMENT)
    head, _, events = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1:2] == [b"200"], f"wanted 200, got {answer[:80]!r}"
    assert b"chunked" not in head.lower(), "chunks, which HTTP/1.0 does not know"
    assert events.startswith(b"data: "), f"the stream begins with {events[:40]!r}"
    assert events.endswith(b"data: [DONE]\n\n"), f"the stream ends with {events[-40:]!r}"


@checks("wire.request.chunked")
def test_chunked(target: Target, some_endpoint: Endpoint) -> None:
    body = json.dumps(target.body(some_endpoint, {})).encode()
    pieces = (body[start : start + 10] for start in range(0, len(body), 10))
    headers = {"Content-Type": "application/json"}
    answer = target.send("POST", some_endpoint.path, content=pieces, headers=headers)
    answer.completion(some_endpoint)


@checks("wire.request.pieces")
def test_pieces(target: Target, some_endpoint: Endpoint) -> None:
    value = target.body(some_endpoint, {})
    request = request_bytes("POST", some_endpoint.path, target.host_header, value)
    with target.connection() as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(request), 40):
            connection.send(request[start : start + 40])
            time.sleep(0.005)
        expect_text(connection.answer(), some_endpoint)


@checks("wire.request.expect")
def test_expect(target: Target, some_endpoint: Endpoint) -> None:
    """As curl sends a large body: its head, and the rest once it is told to go on."""
    body = target.body(some_endpoint, {})
    host = target.host_header
    request = request_bytes("POST", some_endpoint.path, host, body, Expect="100-continue")
    head, end, rest = request.partition(b"\r\n\r\n")
    with target.connection() as connection:
        connection.send(head + end)
        go_on = connection.receive()
        assert go_on.startswith(b"HTTP/1.1 100"), f"wanted 100, got {go_on[:80]!r}"
        connection.send(rest)
        expect_text(connection.answer(), some_endpoint)


@checks("wire.request.query")
def test_query(target: Target, some_endpoint: Endpoint) -> None:
    target.get("/v1/models?after=1").expect(200)
    body = target.body(some_endpoint, {})
    target.post(f"{some_endpoint.path}?api-version=1", body).completion(some_endpoint)


@checks("wire.request.head")
def test_head(target: Target) -> None:
    with target.connection() as connection:
        connection.send(request_bytes("HEAD", "/v1/models", target.host_header, Connection="close"))
        answer = connection.everything(within=MOMENT)
    head, end, body = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1:2] == [b"200"], f"wanted 200, got {answer[:80]!r}"
    assert end, f"the head does not end: {answer[-80:]!r}"
    assert not body, f"a body after the head: {body[:80]!r}"


@checks("wire.request.options")
def test_options(target: Target, some_endpoint: Endpoint) -> None:
    answer = target.send("OPTIONS", some_endpoint.path)
    assert answer.status in (200, 204), f"wanted 200 or 204; {answer.seen}"
    allowed = answer.headers.get("allow", "")
    assert "POST" in allowed, f"the Allow header is {allowed!r}"


@checks("wire.request.method-case")
def test_method_in_lower_case(target: Target) -> None:
    with target.connection() as connection:
        connection.send(request_bytes("get", "/v1/models", target.host_header))
        answer = connection.answer()
    assert 400 <= answer.status <= 501, f"a method get, which there is not, got {answer.seen}"


@checks("wire.request.absolute")
def test_absolute(target: Target) -> None:
    with target.connection() as connection:
        path = f"http://{target.host_header}/v1/models"
        connection.send(request_bytes("GET", path, target.host_header))
        expect_ok(connection.answer())


@checks("wire.request.cut")
def test_cut(target: Target, some_endpoint: Endpoint) -> None:
    """The part that comes is itself whole JSON: only its length says that it is not all."""
    body = target.body(some_endpoint, {})
    request = request_bytes("POST", some_endpoint.path, target.host_header, body)
    length = len(json.dumps(body))
    longer = request.replace(b"Length: %d" % length, b"Length: %d" % (length + 10))
    with target.connection() as connection:
        connection.send(longer)
        connection.end_sending()
        answer = connection.everything(within=MOMENT)
    assert b" 200 " not in answer[:15], f"half a request is answered: {answer[:80]!r}"
    target.complete(some_endpoint)


@checks("wire.request.longer")
def test_longer(target: Target, some_endpoint: Endpoint) -> None:
    """What stands behind a body's length is no part of it."""
    body = target.body(some_endpoint, {})
    request = request_bytes("POST", some_endpoint.path, target.host_header, body)
    with target.connection() as connection:
        connection.send(request + b"}}}}\r\n\r\n")
        expect_text(connection.answer(), some_endpoint)
    target.complete(some_endpoint)


BAD_REQUESTS = [
    row("wire.request.no-host", b"GET /v1/models HTTP/1.1\r\n\r\n"),
    row("wire.request.garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    row("wire.request.garbage", b"GET\r\n\r\n"),
    row("wire.request.garbage", b"GET /v1/models HTTP/1.1\r\nHOST\r\nno colon\r\n\r\n"),
    row(
        "wire.request.garbage", b"POST PATH HTTP/1.1\r\nHOST\r\nTransfer-Encoding: chunked\r\n\r\nx"
    ),
    row(
        "wire.request.large-head",
        b"GET /v1/models HTTP/1.1\r\nHOST\r\nX: %b\r\n\r\n" % (b"x" * 2**20),
    ),
]


def expect_no_answer(target: Target, sent: bytes) -> None:
    """A refusal, or the connection's end; and the next client is served."""
    with target.connection() as connection:
        # A server that has seen enough may end the connection before all is sent.
        with contextlib.suppress(OSError):
            connection.send(sent)
            connection.end_sending()
        answer = connection.everything(within=MOMENT)
    assert not re.match(rb"HTTP/1\.[01] [123]", answer), f"it is answered: {answer[:80]!r}"
    target.get("/v1/models").expect(200)


@pytest.mark.parametrize("request_", BAD_REQUESTS)
def test_bad_request(target: Target, some_endpoint: Endpoint, request_: bytes) -> None:
    sent = request_.replace(b"HOST", b"Host: " + target.host_header.encode(), 1)
    expect_no_answer(target, sent.replace(b"PATH", some_endpoint.path.encode(), 1))


LENGTHS = [
    row("wire.request.lengths", "Content-Length: -1", False),
    row("wire.request.lengths", "Content-Length: two", False),
    row("wire.request.lengths", "Content-Length: {0}\r\nContent-Length: {1}", False),
    row("wire.request.two-codings", "Content-Length: {0}\r\nTransfer-Encoding: chunked", True),
]


@pytest.mark.parametrize(("lengths", "chunked"), LENGTHS)
def test_lengths(target: Target, some_endpoint: Endpoint, lengths: str, chunked: bool) -> None:
    """A request that would be answered, if only it were clear where it ends."""
    body = json.dumps(target.body(some_endpoint, {})).encode()
    if chunked:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    head = request_bytes(
        "POST", some_endpoint.path, target.host_header, Content_Type="application/json"
    ).removesuffix(b"\r\n")
    fields = lengths.format(len(body), len(body) + 1).encode()
    expect_no_answer(target, head + fields + b"\r\n\r\n" + body)


@checks("wire.request.websocket")
def test_websocket(target: Target) -> None:
    upgrade = listing(
        target,
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        Sec_WebSocket_Version="13",
    )
    with target.connection() as connection:
        connection.send(upgrade + b"x")
        # Whatever it answers is its own affair; it must be there afterwards.
        connection.everything(within=0.5)
    target.get("/v1/models").expect(200)
