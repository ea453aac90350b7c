"""HTTP/1.1 over a bare socket, for cases about connections and framing."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from attrs import define, field, frozen

from caldrix_conformance.brief import answered
from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.traffic import Bound, Exchange

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


@frozen
class RawAnswer:
    """A response read from a socket, which stays open."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes
    closes: bool
    """Whether it says that its connection ends with it, as one of HTTP/1.0 does by default."""

    def text(self, endpoint: Endpoint) -> object:
        """The text of the answer of ``endpoint`` that the body must be."""
        try:
            (choice,) = json.loads(self.body)["choices"]
            return endpoint.answer_text(choice)
        except (ValueError, RecursionError, KeyError, TypeError):
            raise AssertionError(f"no answer of {endpoint.path}: {self.seen}") from None

    @property
    def seen(self) -> str:
        """The status and the body's beginning, for messages."""
        return answered(self.status, self.body)


def request_bytes(method: str, path: str, host: str, value: object = None, **headers: str) -> bytes:
    """A request; ``value`` is its JSON body, None for none; ``headers`` spell - as _."""
    body = b"" if value is None else json.dumps(value).encode()
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    if value is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {text}" for name, text in headers.items()]
    return "\r\n".join((*lines, "", "")).encode() + body


@define
class Connection:
    """A connection of a case's own; what goes over it is noted in ``exchange``."""

    socket: socket.socket
    exchange: Exchange
    bound: Bound
    _reader: io.BufferedReader = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reader = _Reader(_Receiving(self))

    def send(self, data: bytes) -> None:
        """Send all of ``data``."""
        self.exchange.sent.add(data)
        self.socket.sendall(data)

    def answer(self) -> RawAnswer:
        """The next response. AssertionError where none comes."""
        response = http.client.HTTPResponse(self.socket)
        # Read through one note-taking buffer, which keeps what came of the answer after this.
        response.fp.close()
        response.fp = self._reader
        try:
            response.begin()
            body = response.read()
        except http.client.IncompleteRead as error:
            self.exchange.broke = f"its body breaks off after {len(error.partial)} bytes"
            raise AssertionError(
                f"no whole answer on the connection: {self.exchange.broke}"
            ) from None
        except (http.client.HTTPException, ConnectionError, TimeoutError, ValueError) as error:
            self.exchange.broke = str(error) or type(error).__name__
            raise AssertionError(f"no answer on the connection: {self.exchange.broke}") from None
        headers = {name.lower(): text for name, text in response.getheaders()}
        said = headers.get("connection", "").lower()
        closes = "close" in said or (response.version == 10 and "keep-alive" not in said)
        return RawAnswer(response.status, headers, body, closes)

    def receive(self) -> bytes:
        """Some bytes, none where the other side has ended. TimeoutError, ConnectionError."""
        return self._reader.read1(65536)

    def everything(self, within: float) -> bytes:
        """What comes until the other side ends, or in ``within`` seconds of silence."""
        self.socket.settimeout(within)
        pieces: list[bytes] = []
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := self.receive():
                pieces.append(data)
        return b"".join(pieces)

    def end_sending(self) -> None:
        """Say that nothing more will be sent. ConnectionError if the other side has ended."""
        try:
            self.socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            raise ConnectionAbortedError("the other side has ended the connection") from error

    def closes_within(self, seconds: float) -> bool:
        """Whether the other side ends the connection before ``seconds`` of silence.

        No wait is longer than the run's own time-out.
        """
        most = self.socket.gettimeout()
        self.socket.settimeout(seconds if most is None else min(seconds, most))
        try:
            while self.receive():
                pass
        except TimeoutError:
            return False
        except ConnectionError:
            return True
        return True


class _Reader(io.BufferedReader):
    def close(self) -> None:
        """Stay open: a response that has been read closes what it was read from."""


class _Receiving(io.RawIOBase):
    """A connection's incoming bytes as a file."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer)
        count = self._connection.socket.recv_into(view)
        self._connection.exchange.received.add(bytes(view[:count]))
        self._connection.bound.take(count)
        return count
