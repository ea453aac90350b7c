"""What went over the wire, kept for the report of the case that sent it.

A body is kept up to a bound: a report is for reading. Exchanges belong to whoever was at work when
they began, a case or a fixture, and a case that fails shows its own and those of its fixtures.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager

import httpx2
from attrs import Factory, define, field

MOST_KEPT = 16 * 1024
"""Bytes that are kept of each direction of an exchange."""
MOST_ANSWERED = 64 * 1024 * 1024
"""Bytes after which an answer is taken for one that never ends."""


class EndlessAnswer(TimeoutError):
    """An answer goes on and on."""


@define
class Bound:
    """What an answer may come to in all, whatever the pace of its bytes."""

    seconds: float
    most: int = field(factory=lambda: MOST_ANSWERED)
    _began: float = field(factory=time.monotonic)
    _received: int = 0

    def take(self, count: int) -> None:
        """Note some bytes more. Raises EndlessAnswer past the bound."""
        self._received += count
        if self._received > self.most:
            raise EndlessAnswer(f"the answer goes on after {self.most:,} bytes")
        if time.monotonic() - self._began > self.seconds:
            raise EndlessAnswer(f"the answer goes on after {self.seconds:.0f} s")


@define
class Side:
    """The bytes of one direction: the first of them, and how many there were."""

    kept: bytearray = Factory(bytearray)
    total: int = 0

    def add(self, data: bytes) -> None:
        """Note some bytes more."""
        self.kept += data[: max(MOST_KEPT - len(self.kept), 0)]
        self.total += len(data)

    @property
    def text(self) -> str:
        """The bytes for reading: what can't be shown as escapes, and how much is left out."""
        text = "".join(map(_shown, self.kept.decode("utf-8", "backslashreplace")))
        rest = self.total - len(self.kept)
        return f"{text}\n… {rest:,} more bytes" if rest else text


@define
class Exchange:
    """What was sent and received over one connection, or for one request."""

    title: str
    sent: Side = field(factory=Side)
    received: Side = field(factory=Side)
    broke: str = ""
    """How it broke off, if it did."""


@define
class Traffic:
    """The exchanges of a run, by who began them."""

    _open: list[list[Exchange]] = field(factory=lambda: [[]])
    _done: dict[Hashable, Sequence[Exchange]] = field(factory=dict)

    def begin(self, title: str) -> Exchange:
        """A new exchange of whoever is at work."""
        exchange = Exchange(title)
        self._open[-1].append(exchange)
        return exchange

    @contextmanager
    def of(self, owner: Hashable) -> Iterator[None]:
        """While open, new exchanges are those of ``owner``; owners may be within each other."""
        own: list[Exchange] = []
        self._done[owner] = own
        self._open.append(own)
        try:
            yield
        finally:
            self._open.pop()

    def told_by(self, owner: Hashable) -> Sequence[Exchange]:
        """The exchanges of ``owner``, none if it never was at work."""
        return self._done.get(owner, ())

    def forget(self, owner: Hashable) -> None:
        """Let go of an owner's exchanges."""
        self._done.pop(owner, None)


class RecordingTransport(httpx2.BaseTransport):
    """Notes what goes through another transport, and ends answers that don't end by themselves.

    An answer may take ``seconds`` in all.
    """

    def __init__(self, transport: httpx2.BaseTransport, traffic: Traffic, seconds: float) -> None:
        self._transport = transport
        self._traffic = traffic
        self._seconds = seconds

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Hand on a request, and its answer."""
        target = request.url.raw_path.decode("ascii", "replace")
        exchange = self._traffic.begin(f"{request.method} {target}")
        exchange.sent.add(_head(f"{request.method} {target}", request.headers))
        assert isinstance(request.stream, httpx2.SyncByteStream)
        bound = Bound(self._seconds)
        request.stream = _Tee(request.stream, exchange.sent, exchange)
        try:
            response = self._transport.handle_request(request)
        except httpx2.TransportError as error:
            exchange.broke = str(error) or type(error).__name__
            raise
        exchange.received.add(_head(str(response.status_code), response.headers))
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _Tee(response.stream, exchange.received, exchange, bound)
        return response

    def close(self) -> None:
        """Close the transport behind."""
        self._transport.close()


class _Tee(httpx2.SyncByteStream):
    def __init__(
        self,
        stream: httpx2.SyncByteStream,
        side: Side,
        exchange: Exchange,
        bound: Bound | None = None,
    ) -> None:
        self._stream = stream
        self._side = side
        self._exchange = exchange
        self._bound = bound

    def __iter__(self) -> Iterator[bytes]:
        try:
            for data in self._stream:
                self._side.add(data)
                if self._bound is not None:
                    self._bound.take(len(data))
                yield data
        except (httpx2.TransportError, EndlessAnswer) as error:
            self._exchange.broke = str(error) or type(error).__name__
            raise

    def close(self) -> None:
        self._stream.close()


_HIDDEN = b"<not shown>"


def _shown(char: str) -> str:
    return char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode()


def _head(first: str, headers: httpx2.Headers) -> bytes:
    shown = ((name, _HIDDEN if name.lower() == b"authorization" else v) for name, v in headers.raw)
    lines = [first.encode(), *(name + b": " + value for name, value in shown)]
    return b"\n".join((*lines, b"", b""))
