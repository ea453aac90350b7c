"""HTTP by hand, for what no client library would send or do."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from attrs import define, frozen

from tests.support.serving import Running

TEXT = "/v1/completions"


def head(line: str, *headers: str) -> bytes:
    """A request's head; every one has the Host it needs."""
    return "\r\n".join([line, "Host: localhost", *headers, "", ""]).encode()


def post(body: object, *headers: str, path: str = TEXT) -> bytes:
    """A request with a JSON body."""
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


@frozen
class Received:
    """An answer with a Content-Length."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """The message of its error object."""
        return str(json.loads(self.body)["error"]["message"])


@define(eq=False)
class Wire:
    """A connection, by bytes."""

    stream: trio.SocketStream
    _buffer: bytes = b""

    async def send(self, data: bytes) -> None:
        """Sends all of ``data``."""
        await self.stream.send_all(data)

    async def until(self, mark: bytes) -> bytes:
        """Everything up to and with ``mark``."""
        with trio.fail_after(5):
            while mark not in self._buffer:
                await self._receive()
        taken, _, self._buffer = self._buffer.partition(mark)
        return taken + mark

    async def answer(self) -> Received:
        """The next answer."""
        start = (await self.until(b"\r\n\r\n")).decode()
        status_line, *lines = start.removesuffix("\r\n\r\n").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines)
        size = int(headers["content-length"])
        with trio.fail_after(5):
            while len(self._buffer) < size:
                await self._receive()
        body, self._buffer = self._buffer[:size], self._buffer[size:]
        return Received(int(status_line.split()[1]), headers, body)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection."""
        with trio.fail_after(5):
            while piece := await self.stream.receive_some():
                self._buffer += piece
        taken, self._buffer = self._buffer, b""
        return taken

    async def _receive(self) -> None:
        data = await self.stream.receive_some()
        assert data, f"the connection ended after {self._buffer!r}"
        self._buffer += data


@asynccontextmanager
async def connected(server: Running) -> AsyncIterator[Wire]:
    """A connection for as long as the block lasts."""
    stream = await trio.open_tcp_stream(*server.address)
    async with stream:
        yield Wire(stream)


@asynccontextmanager
async def streaming(server: Running) -> AsyncIterator[Wire]:
    """A client whose stream has begun; if the model never ends, it keeps a row for the block."""
    body = {"model": server.service.served_name, "prompt": "hi", "stream": True}
    async with connected(server) as wire:
        await wire.send(post(body))
        await wire.until(b'"text":"')
        yield wire


@asynccontextmanager
async def unharmed(server: Running) -> AsyncIterator[None]:
    """Within the block clients do their worst; after it the server is as it was before."""
    await _assert_serves(server)
    before = tasks_living()
    yield
    with trio.fail_after(5):
        await _assert_serves(server)
        await server.wait_rows_free()
        while tasks_living() > before:  # noqa: ASYNC110  # a task's end is no event
            await trio.sleep(0.002)


async def _assert_serves(server: Running) -> None:
    assert (await server.client.get("/healthz")).text == "ok"
    body = {"model": server.service.served_name, "prompt": "hi", "max_tokens": 1}
    assert (await server.client.post(TEXT, json=body)).status_code == 200


def tasks_living() -> int:
    """The tasks there are, of the server and of the test."""
    return trio.lowlevel.current_statistics().tasks_living


def reset(wire: Wire) -> None:
    """Has the connection end in a reset, and not in an orderly way, when it is closed."""
    wire.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def sent_chunks(received: bytes) -> bytes:
    """The body of a whole answer in chunked encoding; an error if the answer has no end."""
    _, _, rest = received.partition(b"\r\n\r\n")
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if int(size, 16) == 0:
            assert rest == b"\r\n", "the answer goes on after its end"
            return body
        body, rest = body + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
