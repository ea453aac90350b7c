"""A client that keeps its connection, and can leave at any moment of an exchange."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

import h11
import trio
from attrs import frozen

_READ_SIZE = 2**16
_HEAD_SENT = 24
_BODY_UNSENT = 3


class Stage(Enum):
    """When a client leaves."""

    HEAD = "in the request's head"
    BODY = "in the request's body"
    SENT = "at once after the request"
    WAITING = "after a moment"
    ANSWER = "in the answer, or right after it"


@frozen
class Leaving:
    """How a client leaves."""

    stage: Stage
    seconds: float = 0.0
    """The moment."""
    received: int = 0
    """Bytes of the answer after which it goes."""
    resets: bool = False
    """Whether the server is told so by a reset, and not by an end."""


@frozen
class Reply:
    """An answer, whole."""

    status: int
    body: bytes
    streamed: bool


class NoAnswer(Exception):
    """The connection ended before an answer did."""


def request(path: str, content: bytes, declared: int | None = None) -> bytes:
    """A request as bytes; its body may be another one than the ``declared`` number says."""
    length = len(content) if declared is None else declared
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode() + content


def json_request(path: str, fields: Mapping[str, Any]) -> bytes:
    """A request of JSON fields."""
    return request(path, json.dumps(fields).encode())


class Client:
    """One of many; it has one connection at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._stream: trio.SocketStream | None = None
        self._protocol = h11.Connection(h11.CLIENT)

    async def ask(self, data: bytes) -> Reply:
        """The answer to a request. Raises NoAnswer."""
        stream = await self._connected()
        # One that is refused before it is all sent is answered all the same.
        with suppress(trio.BrokenResourceError):
            await stream.send_all(data)
        reply = await self._read(None)
        left_over, _ = self._protocol.trailing_data
        if left_over:
            raise NoAnswer(f"after the answer came {left_over[:200]!r}")
        if self._protocol.their_state is h11.DONE:
            self._protocol = h11.Connection(h11.CLIENT)
        else:
            await self.close()
        return reply

    async def ask_and_end_sending(self, data: bytes) -> Reply | None:
        """The answer to a request after which nothing can be sent; None if it was given up."""
        await self.close()
        stream = await self._connected()
        await stream.send_all(data)
        await stream.send_eof()
        try:
            return await self._read(None)
        except NoAnswer:
            return None
        finally:
            await self.close()

    async def ask_and_leave(self, data: bytes, leaving: Leaving) -> Reply | None:
        """A request whose answer is not waited for, or not to its end: None once it has left.

        A refusal that comes before that is returned.
        """
        stream = await self._connected()
        reply = None
        match leaving.stage:
            case Stage.HEAD:
                await stream.send_all(data[:_HEAD_SENT])
            case Stage.BODY:
                await stream.send_all(data[:-_BODY_UNSENT])
            case Stage.SENT:
                await stream.send_all(data)
            case Stage.WAITING:
                await stream.send_all(data)
                with trio.move_on_after(leaving.seconds):
                    reply = await self._read(None)
            case Stage.ANSWER:
                await stream.send_all(data)
                reply = await self._read(leaving.received)
        if leaving.resets:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self.close()
        return None if reply is None or reply.status == 200 else reply

    async def close(self) -> None:
        """Ends its connection."""
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
        self._stream, self._protocol = None, h11.Connection(h11.CLIENT)

    async def _connected(self) -> trio.SocketStream:
        if self._stream is None:
            self._stream = await trio.open_tcp_stream(*self._address)
        # The protocol knows of requests, and of those only that one was sent.
        head = h11.Request(method="POST", target="/", headers=[("Host", "localhost")])
        self._protocol.send(head)
        self._protocol.send(h11.EndOfMessage())
        return self._stream

    async def _read(self, most: int | None) -> Reply:
        """The answer, or at least ``most`` bytes of one that is no refusal. Raises NoAnswer."""
        assert self._stream is not None
        status, streamed, body = 0, False, bytearray()
        while most is None or status != 200 or len(body) < most:
            try:
                event = self._protocol.next_event()
                if event is h11.NEED_DATA:
                    self._protocol.receive_data(await self._stream.receive_some(_READ_SIZE))
            except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
                await self.close()
                raise NoAnswer(f"{error!r} after {status} and {bytes(body[-200:])!r}") from error
            match event:
                case h11.Response():
                    status = event.status_code
                    kind = dict(event.headers).get(b"content-type", b"")
                    streamed = kind == b"text/event-stream"
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    break
                case h11.ConnectionClosed():
                    await self.close()
                    raise NoAnswer("the connection ended before there was an answer")
        return Reply(status, bytes(body), streamed)
