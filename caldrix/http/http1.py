"""HTTP/1.1 on one connection: Hypercorn's protocol over h11, with its faults ruled out.

Left as they are, an upgrade with a byte too many ends the process, errors have empty bodies, a
disconnect goes unseen while requests were sent ahead, and a connection that was to be closed stays
open, since the task that should close it is cancelled first.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import h11
import structlog
import trio
from attrs import frozen
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, ConnectionState, Scope
from hypercorn.utils import suppress_body

from caldrix.http.body import shorten
from caldrix.http.config import Timeouts
from caldrix.http.errors import ApiError, error_body, internal_error
from caldrix.http.exchange import JSON

_log = structlog.get_logger(__name__)

# Bytes of requests sent ahead that are kept while one is served.
_MOST_PIPELINED = 2**20
# States of the client. One that asks for an upgrade is, once its body is read, in none of them.
_NONE_FOLLOWS = frozenset({h11.SEND_BODY, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR})
# A path, or "*", which asks about the server itself; or a whole URL (RFC 9112, 3.2).
_TARGET = re.compile(rb"/|\*$")
_ABSOLUTE_TARGET = re.compile(rb"(?i:https?)://([^/?#]+)(/.*)")
# What h11 quotes of the request, as Python writes bytes.
_BYTES = r"""b(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_LARGE_HEAD = "the request's head is too large"
_QUOTED_BYTES = re.compile(rf"bytearray\((?P<array>{_BYTES})\)|(?P<bytes>{_BYTES})")


@frozen(eq=False)
class HttpServer:
    """What all connections of a server share."""

    app: AppWrapper
    config: Config
    context: WorkerContext
    timeouts: Timeouts
    most_body: int
    """Bytes; a client that asks before it sends more is not told to go on."""


class HeadBegun(Event):
    """Some of a request's head has come, and not all of it."""


class Http1(H11Protocol):
    """HTTP/1.1 for one connection: no upgrades, error objects, and no wait while reading.

    Upgrades to WebSocket or HTTP/2 are not taken up, as the standard allows (RFC 9110, 7.8): the
    request is answered as if it had not asked.
    """

    stream: HTTPStream | None
    connection: h11.Connection

    def __init__(
        self,
        server: HttpServer,
        tasks: TaskGroup,
        client_address: tuple[str, int] | None,
        server_address: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        super().__init__(
            server.app,
            server.config,
            server.context,
            tasks,
            ConnectionState({}),
            False,
            client_address,
            server_address,
            send,
        )
        self._write = write
        self._most_body = server.most_body
        self._declared_body = 0
        self._body_received = 0
        # The reading task and the end of a request both handle events: one at a time.
        self._turn = trio.Lock()
        self._answered = trio.Event()
        self._not_busy = trio.Event()
        self._not_busy.set()

    @property
    def busy(self) -> bool:
        """Whether a request is being served."""
        return not self._not_busy.is_set()

    @property
    def awaits_body(self) -> bool:
        """Whether some of a request's body has not come."""
        return self.connection.their_state is h11.SEND_BODY

    async def wait_not_busy(self) -> None:
        """Returns once no request is being served, nor one that was sent ahead."""
        await self._not_busy.wait()

    async def handle(self, event: Event) -> None:
        """Takes bytes from the client, or the end of the connection."""
        if isinstance(event, RawData) and self.awaits_body:
            self._body_received += len(event.data)
        await super().handle(event)
        # Requests sent ahead wait in memory, so that a disconnect is still seen; up to a point.
        while self.stream is not None and len(self.connection.trailing_data[0]) > _MOST_PIPELINED:
            await self._answered.wait()

    async def stream_send(self, event: StreamEvent) -> None:
        """Takes an answer's parts from the request's task."""
        if isinstance(event, Response) and self._closes_after_answer():
            headers = [*event.headers, (b"connection", b"close")]
            event = dataclasses.replace(event, headers=headers)
        await super().stream_send(event)

    async def send_chunk(self, data: bytes) -> None:
        """Sends a part of an answer in chunked coding (RFC 9112, 7.1) that has begun.

        The parser would write the same, but slowly, and a part is often one token.
        """
        await self._write(b"%x\r\n%b\r\n" % (len(data), data))

    async def refuse(self, status: int, message: str) -> None:
        """Answers what is no request with an error object, and ends the connection."""
        await self._close_stream()
        self._not_busy.set()
        if self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = error_body(ApiError(status, message))
            headers = [*_json_headers(body), (b"connection", b"close")]
            headers += self.config.response_headers("h11")
            await self._send_h11_event(h11.Response(status_code=status, headers=headers))
            await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())

    async def _handle_events(self) -> None:
        async with self._turn:
            while await self._handle_next_event():
                pass
        if self.stream is None and self.connection.trailing_data[0]:
            await self.send(HeadBegun())

    async def _handle_sent_ahead(self) -> None:
        await self._handle_events()
        if self.stream is None:
            self._not_busy.set()
            if self.context.terminated.is_set():
                await self.send(Closed())

    async def _handle_next_event(self) -> bool:
        """Handles an event of the parser; False when it has none for now."""
        if (
            self.connection.they_are_waiting_for_100_continue
            and self._declared_body <= self._most_body
        ):
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
        self._skip_blank_lines()
        if self.awaits_body and self._body_received > 2 * self._most_body:
            await self.refuse(400, "the body's chunks are mostly headers; send larger ones")
            return False
        try:
            event = self.connection.next_event()
        except h11.RemoteProtocolError as error:
            in_body = self.stream is not None
            await self.refuse(error.error_status_hint, _describe(error, in_body=in_body))
            return False
        match event:
            case h11.Request():
                await self._begin_request(event)
            case h11.Data() if self.stream is not None:
                await self.stream.handle(Body(stream_id=STREAM_ID, data=bytes(event.data)))
            case h11.EndOfMessage() if self.stream is not None:
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            case _:
                # Nothing to parse yet, or nothing to parse until the present answer is sent.
                return False
        return True

    def _skip_blank_lines(self) -> None:
        """Passes over ends of line before a request, as some clients send (RFC 9112, 2.2)."""
        waiting, ended = self.connection.trailing_data
        if self.connection.their_state is not h11.IDLE or waiting[:1] not in {b"\r", b"\n"}:
            return
        # The parser takes nothing back; one at its beginning is like a new one.
        self.connection = h11.Connection(
            h11.SERVER, max_incomplete_event_size=self.config.h11_max_incomplete_size
        )
        if rest := waiting.lstrip(b"\r\n"):
            self.connection.receive_data(rest)
        if ended:
            self.connection.receive_data(b"")

    async def _begin_request(self, request: h11.Request) -> None:
        if not self.busy:
            self._not_busy = trio.Event()
        self._body_received = 0
        await self.send(Updated(idle=False))
        if _head_size(request) > self.config.h11_max_incomplete_size:
            await self.refuse(431, _LARGE_HEAD)
            return
        if request.http_version not in {b"1.0", b"1.1"}:
            await self.refuse(505, "this server speaks HTTP/1.1")
            return
        if request.method != request.method.upper():
            # Methods are told apart by case (RFC 9110, 9.1), which the framework forgets.
            await self.refuse(501, "the method is unknown; methods are written in capitals")
            return
        target, headers = _origin_form(request)
        if not _TARGET.match(target):
            await self.refuse(400, "the request's target must be a path that begins with /")
            return
        names = {name for name, _ in headers}
        if {b"content-length", b"transfer-encoding"} <= names:
            # Two readers may disagree on where such a body ends (RFC 9112, 6.1).
            await self.refuse(400, "send Content-Length or Transfer-Encoding, not both")
            return
        lengths = [value for name, value in headers if name == b"content-length"]
        self._declared_body = int(lengths[0]) if lengths else 0
        self.stream = RequestStream(self)
        await self.stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode(),
                method=request.method.decode(),
                raw_path=target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1

    async def _maybe_recycle(self) -> None:
        stream, self.stream = self.stream, None
        self._answered.set()
        self._answered = trio.Event()
        if self._closes_after_answer() or self.connection.our_state is not h11.DONE:
            self._not_busy.set()
            await self.send(Closed())
        else:
            self.connection.start_next_cycle()
            await self.send(Updated(idle=True))
            self.task_group.spawn(self._handle_sent_ahead)
        if stream is not None:
            # Last, for it cancels the task that runs this.
            await stream.handle(StreamClosed(stream_id=STREAM_ID))

    def _closes_after_answer(self) -> bool:
        """Whether no other request can follow, as the request's body is not all here or by will."""
        return self.context.terminated.is_set() or self.connection.their_state in _NONE_FOLLOWS


class RequestStream(HTTPStream):
    """One request between the protocol and the application."""

    def __init__(self, protocol: Http1) -> None:
        super().__init__(
            protocol.app,
            protocol.config,
            protocol.context,
            protocol.task_group,
            protocol.ssl,
            protocol.client,
            protocol.server,
            protocol.stream_send,
            STREAM_ID,
        )
        self._send_chunk = protocol.send_chunk
        self._chunked = False

    async def app_send(self, message: ASGISendEvent | None) -> None:
        """Takes the application's parts of an answer; those of a stream go a short way."""
        if (
            self._chunked
            and message is not None
            and message["type"] == "http.response.body"
            and message.get("more_body")
        ):
            # An empty chunk would end the answer.
            if message["body"]:
                await self._send_chunk(message["body"])
            return
        await super().app_send(message)
        if message is not None and message["type"] == "http.response.start":
            self._chunked = (
                self.scope["http_version"] == "1.1"
                and not suppress_body(self.scope["method"], message["status"])
                and all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            )

    async def _send_error_response(self, status_code: int) -> None:
        """Answers for an application that ended without an answer."""
        body = error_body(internal_error())
        headers = [*_json_headers(body), (b"connection", b"close")]
        await self.send(
            Response(stream_id=self.stream_id, headers=headers, status_code=status_code)
        )
        await self.send(Body(stream_id=self.stream_id, data=body))
        await self.send(EndBody(stream_id=self.stream_id))
        self.state = ASGIHTTPState.CLOSED


class RequestTasks(TaskGroup):
    """The tasks of one connection's requests."""

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        """Starts the application on a request; returns what passes the client's events to it."""
        to_app, from_client = trio.open_memory_channel[ASGIReceiveEvent](config.max_app_queue_size)
        self.spawn(_run_app, app, scope, from_client.receive, send)
        return to_app.send


async def _run_app(
    app: AppWrapper,
    scope: Scope,
    receive: Callable[[], Awaitable[ASGIReceiveEvent]],
    send: Callable[[ASGISendEvent | None], Awaitable[None]],
) -> None:
    try:
        await app(scope, receive, send, trio.to_thread.run_sync, trio.from_thread.run)
    except* Exception:  # noqa: BLE001  # nor must a fault of one request
        _log.exception("request_failed")
    # Answers for the application if it did not, and otherwise does nothing.
    await send(None)


def _json_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]


def _head_size(request: h11.Request) -> int:
    """Bytes of a request's head, as it is written without spaces that say nothing."""
    fields = sum(len(name) + len(value) + 4 for name, value in request.headers)
    return len(request.method) + len(request.target) + len(" HTTP/1.1\r\n ") + fields


def _describe(error: h11.RemoteProtocolError, *, in_body: bool) -> str:
    if error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
        return "a chunk's header, or the trailer, is too large" if in_body else _LARGE_HEAD
    return f"the request is not HTTP: {_QUOTED_BYTES.sub(_quoted, str(error))}"


def _quoted(match: re.Match[str]) -> str:
    quoted: bytes = ast.literal_eval(match["array"] or match["bytes"])
    return json.dumps(shorten(quoted.decode("latin-1")), ensure_ascii=False)


def _origin_form(request: h11.Request) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The target as a path, and the headers; a URL's authority takes the place of the Host.

    So RFC 9112 wants it, in 3.2.2.
    """
    headers = list(request.headers)
    if absolute := _ABSOLUTE_TARGET.fullmatch(request.target):
        authority, path = absolute.groups()
        others = [(name, value) for name, value in headers if name != b"host"]
        return path, [(b"host", authority), *others]
    return request.target, headers
