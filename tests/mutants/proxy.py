"""A loopback proxy before a real server, which rewrites the exchanges that a mutation picks.

All else goes through byte by byte, as it comes. What is no whole HTTP/1.1 request within a moment
(half of one, an upgrade, another protocol) is not looked into at all.

A hundred runs of the suite ask the same questions. So what the server generates is recorded by the
request and by how often a run has sent it; a later run gets the same bytes at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import socketserver
import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any
from urllib.parse import urlsplit

import h11
from attrs import define, field, frozen

from tests.mutants.exchange import Ending, Headers, Mutation, Reply, Request, unframed

PATIENCE = 1.0
"""Seconds without a byte, after which a request is passed on as far as it came."""
_MOST_READ = 64 * 1024 * 1024
_RECORDED = ("/v1/chat/completions", "/v1/completions")
_MUTATED = ("GET", "POST")
"""Methods whose replies have a body to be made wrong."""
_EVENTS = b"text/event-stream"
_NO_REQUEST = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"

Pieces = list[bytes]


@define
class Recorder:
    """The server's replies, as bytes: the n-th to a request in any run."""

    _replies: dict[tuple[bytes, int], Pieces] = field(factory=dict)
    _asked: Counter[bytes] = field(factory=Counter)
    _lock: Any = field(factory=Lock)

    def begin(self) -> None:
        """A new run: its first request is the first again."""
        with self._lock:
            self._asked.clear()

    def place(self, raw: bytes) -> tuple[bytes, int]:
        """Where the reply to the request ``raw`` belongs, this time."""
        digest = hashlib.sha256(raw).digest()
        with self._lock:
            self._asked[digest] += 1
            return digest, self._asked[digest]

    def reply(self, place: tuple[bytes, int]) -> Pieces | None:
        """What is recorded there."""
        return self._replies.get(place)

    def keep(self, place: tuple[bytes, int], pieces: Pieces) -> None:
        """Record a reply that has come to its end."""
        self._replies[place] = pieces


@define
class Proxy:
    """Before the server at ``upstream``; changes nothing without a mutation."""

    upstream: tuple[str, int]
    url: str = ""
    mutation: Mutation | None = None
    recorder: Recorder = field(factory=Recorder)

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[str]:
        """A run of the suite with ``mutation``; gives the URL."""
        self.recorder.begin()
        self.mutation = mutation
        try:
            yield self.url
        finally:
            self.mutation = None


@contextmanager
def proxying(url: str) -> Iterator[Proxy]:
    """A proxy on a loopback port before the server at ``url``."""
    parsed = urlsplit(url)
    assert parsed.hostname is not None
    assert parsed.port is not None
    proxy = Proxy((parsed.hostname, parsed.port))

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                _Conversation(self.request, proxy).run()

    with _Server(("127.0.0.1", 0), Handler) as server:
        proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield proxy
        finally:
            server.shutdown()
            thread.join()


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128


@frozen
class _Opaque:
    """Bytes that are no whole request."""

    raw: bytes


@define(eq=False)
class _Conversation:
    """One client's connection, and one to the server as soon as that is needed."""

    client: socket.socket
    proxy: Proxy
    server: socket.socket | None = None
    pending: bytes = b""
    """What the client sent after its last request."""

    def run(self) -> None:
        self.client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while self.one_exchange():
                pass
        finally:
            if self.server is not None:
                self.server.close()

    def one_exchange(self) -> bool:
        """Whether the connection goes on afterwards."""
        taken = self.next_request()
        if taken is None:
            return False
        if isinstance(taken, _Opaque):
            self.tunnel(taken.raw)
            return False
        raw, request = taken
        mutation = self.proxy.mutation
        if mutation is not None and mutation.needs_open and self.has_ended():
            return False
        if mutation is not None and request.method in _MUTATED and mutation.picks(request):
            asked = mutation.ask(request)
            raw = raw if asked is request else asked.to_bytes()
        elif request.header("upgrade"):
            self.tunnel(raw + self.pending)
            return False
        else:
            mutation = None
        return self.exchange(raw, request, mutation)

    def has_ended(self) -> bool:
        """Whether the client says within a moment that it sends nothing more."""
        ready = select.select([self.client], [], [], 0.05)[0]
        return bool(ready) and not self.client.recv(1, socket.MSG_PEEK)

    def next_request(self) -> tuple[bytes, Request] | _Opaque | None:
        """The next request with its bytes; None where the connection has ended."""
        reading = _Reading()
        data, self.pending = self.pending, b""
        while True:
            taken = reading.take(data) if data else None
            if isinstance(taken, _Opaque):
                return taken
            if taken is not None:
                self.pending = reading.rest
                return bytes(reading.raw[: len(reading.raw) - len(self.pending)]), taken
            begun = bool(reading.raw)
            if begun and self.proxy.mutation is not None and self.proxy.mutation.reads_once:
                self.client.sendall(_NO_REQUEST)
                return None
            sockets = [self.client] if self.server is None else [self.client, self.server]
            ready = select.select(sockets, [], [], PATIENCE if begun else None)[0]
            # Nothing for a while, or the server ends a connection that waits.
            data = self.client.recv(1 << 20) if self.client in ready else b""
            if not data:
                return reading.opaque if begun else None

    def exchange(self, raw: bytes, request: Request, mutation: Mutation | None) -> bool:
        place = self.proxy.recorder.place(raw) if request.path in _RECORDED else None
        recorded = None if place is None else self.proxy.recorder.reply(place)
        incoming = _Incoming.to(request, self.live(raw) if recorded is None else iter(recorded))
        if mutation is None or incoming.status not in mutation.status:
            for piece in incoming.raw():
                self.client.sendall(piece)
            ending = Ending.AS_SERVER
        else:
            reply = mutation.tell(incoming.reply(), request)
            for piece in mutation.wire(reply):
                self.client.sendall(piece)
            ending = mutation.then
        if not incoming.ended:
            self.hang_up()
        elif place is not None and recorded is None:
            self.proxy.recorder.keep(place, incoming.pieces)
        return self.goes_on(ending, incoming)

    def goes_on(self, ending: Ending, incoming: _Incoming) -> bool:
        if ending is Ending.AS_SERVER:
            return not incoming.closes
        if ending is Ending.KEEP:
            self.hang_up()
            return True
        if ending is Ending.RESET:
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.client.close()
        elif ending is Ending.HANG:
            while self.client.recv(65536):
                pass
        return False

    def hang_up(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None

    def connected(self) -> socket.socket:
        if self.server is None:
            self.server = socket.create_connection(self.proxy.upstream)
            self.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.server

    def live(self, raw: bytes) -> Iterator[bytes]:
        """The server's bytes after ``raw``, and b"" where it ends; a client that leaves is told."""
        server = self.connected()
        # A server may refuse before it has read all; its reply is there all the same.
        with contextlib.suppress(ConnectionError):
            server.sendall(raw)
        watched = [server, self.client]
        while True:
            ready = select.select(watched, [], [])[0]
            if server in ready:
                data = server.recv(65536)
                yield data
                if not data:
                    return
            elif self.client.recv(1, socket.MSG_PEEK):
                # Another request already, whose turn comes.
                watched = [server]
            else:
                watched = [server]
                server.shutdown(socket.SHUT_WR)

    def tunnel(self, raw: bytes) -> None:
        """Pass bytes in both directions until both have ended."""
        server = self.connected()
        server.sendall(raw)
        other = {self.client: server, server: self.client}
        open_ends = [self.client, server]
        while open_ends:
            for ready in select.select(open_ends, [], [])[0]:
                data = ready.recv(65536)
                if data:
                    other[ready].sendall(data)
                else:
                    open_ends.remove(ready)
                    with contextlib.suppress(OSError):
                        other[ready].shutdown(socket.SHUT_WR)


@define(eq=False)
class _Reading:
    """A request as its bytes come in."""

    raw: bytearray = field(factory=bytearray)
    _parser: h11.Connection = field(factory=lambda: h11.Connection(h11.SERVER))
    _head: h11.Request | None = None
    _body: Pieces = field(factory=list)

    def take(self, data: bytes) -> Request | _Opaque | None:
        """Some bytes more; the request once it is whole."""
        self.raw += data
        self._parser.receive_data(data)
        try:
            while not isinstance(event := self._parser.next_event(), h11.EndOfMessage):
                if isinstance(event, h11.Request):
                    self._head = event
                elif isinstance(event, h11.Data):
                    self._body.append(bytes(event.data))
                else:
                    odd = self._parser.they_are_waiting_for_100_continue
                    return self.opaque if odd or len(self.raw) > _MOST_READ else None
        except h11.RemoteProtocolError:
            return self.opaque
        assert self._head is not None
        if self._head.http_version != b"1.1":
            return self.opaque
        return Request(
            method=self._head.method.decode(),
            path=self._head.target.decode("latin-1"),
            headers=_texts(self._head),
            body=b"".join(self._body),
        )

    @property
    def opaque(self) -> _Opaque:
        """What has come, not looked into."""
        return _Opaque(bytes(self.raw))

    @property
    def rest(self) -> bytes:
        """What came after a whole request."""
        return self._parser.trailing_data[0]


@define(eq=False)
class _Incoming:
    """A reply of the server as its bytes come in."""

    _source: Iterator[bytes]
    _parser: h11.Connection
    pieces: Pieces = field(factory=list)
    """What has come so far; b"" last where the connection's end is the reply's."""
    ended: bool = False
    _data: Pieces = field(factory=list)
    _head: h11.Response = field(init=False)

    @classmethod
    def to(cls, request: Request, source: Iterator[bytes]) -> _Incoming:
        parser = h11.Connection(h11.CLIENT)
        target = request.path.encode("latin-1")
        parser.send(h11.Request(method=request.method, target=target, headers=[("Host", "")]))
        parser.send(h11.EndOfMessage())
        return cls(source, parser)

    def __attrs_post_init__(self) -> None:
        heads: list[h11.Response] = []
        while not heads:
            heads = [event for event in self._advance() if isinstance(event, h11.Response)]
        (self._head,) = heads

    @property
    def status(self) -> int:
        return self._head.status_code

    @property
    def closes(self) -> bool:
        """Whether the server ends the connection after this reply."""
        return (b"connection", b"close") in self._head.headers or self.pieces[-1:] == [b""]

    def raw(self) -> Iterator[bytes]:
        """The bytes as they came and come."""
        yield from list(self.pieces)
        while not self.ended:
            self._advance()
            yield self.pieces[-1]

    def reply(self) -> Reply:
        """The reply without its framing."""
        is_stream = any(
            name == b"content-type" and value.startswith(_EVENTS)
            for name, value in self._head.headers
        )
        body: Iterable[bytes]
        body = _events(self._body()) if is_stream else (b"".join(self._body()),)
        headers = unframed(_texts(self._head))
        return Reply(status=self.status, headers=headers, body=body, whole=not is_stream)

    def _body(self) -> Iterator[bytes]:
        while True:
            data, self._data = self._data, []
            yield from data
            if self.ended:
                return
            self._advance()

    def _advance(self) -> list[Any]:
        """Take one piece more; its events."""
        piece = next(self._source)
        self.pieces.append(piece)
        self._parser.receive_data(piece)
        events: list[Any] = []
        try:
            while (event := self._parser.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                events.append(event)
                if isinstance(event, h11.Data):
                    self._data.append(bytes(event.data))
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    self.ended = True
                    break
        except h11.RemoteProtocolError as error:
            raise ConnectionError("the server broke off") from error
        return events


def _events(body: Iterator[bytes]) -> Iterator[bytes]:
    """The events of a stream, each with its blank line, as soon as they are there."""
    rest = b""
    for data in body:
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest:
        yield rest


def _texts(head: h11.Request | h11.Response) -> Headers:
    return tuple(
        (name.decode(), value.decode("latin-1")) for name, value in head.headers.raw_items()
    )
