"""HTTP by hand, for what no client library would send or do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from tests.support.serving import Running

TEXT = "/v1/completions"


def post(body: object, *headers: str, path: str = TEXT) -> bytes:
    content = json.dumps(body).encode()
    return (
        head(
            f"POST {path} HTTP/1.1",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            *headers,
        )
        + content
    )


def head(line: str, *headers: str) -> bytes:
    return "\r\n".join([line, "Host: localhost", *headers, "", ""]).encode()


@asynccontextmanager
async def connected(server: Running) -> AsyncIterator[trio.SocketStream]:
    stream = await server.connect()
    async with stream:
        yield stream


async def receive_all(stream: trio.SocketStream) -> bytes:
    """Everything up to the end of the connection."""
    with trio.fail_after(5):
        return b"".join([piece async for piece in stream])


async def receive_answer(stream: trio.SocketStream) -> tuple[int, dict[str, str], bytes]:
    """An answer with a Content-Length: status, headers, body."""
    received = b""
    with trio.fail_after(5):
        while b"\r\n\r\n" not in received:
            received += await _more(stream)
        start, _, body = received.partition(b"\r\n\r\n")
        status_line, *lines = start.decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        while len(body) < int(headers["content-length"]):
            body += await _more(stream)
    return int(status_line.split()[1]), headers, body


async def _more(stream: trio.SocketStream) -> bytes:
    data = await stream.receive_some()
    assert data, "the connection ended inside an answer"
    return bytes(data)


def message(body: bytes) -> str:
    return str(json.loads(body)["error"]["message"])


def sent_chunks(received: bytes) -> bytes:
    """The body of an answer in chunked encoding that has come to its end."""
    _, _, rest = received.partition(b"\r\n\r\n")
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            assert rest == b"\r\n", "the answer goes on after its end"
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
