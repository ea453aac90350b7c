"""The application: routes on Quart-Trio, and every failure as an error object.

All that is known of the framework stands in this module. A request's way: the Host check, the
route, the whole body within its limit and its time, which is decoded if it comes compressed, the
handler, and an `Answer` or an `EventStream` back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar

import structlog
import trio
from attrs import evolve
from hypercorn.typing import ASGISendCallable
from quart import Response, request
from quart.typing import ResponseTypes
from quart.wrappers import Request
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioResponse
from werkzeug.exceptions import (
    HTTPException,
    MethodNotAllowed,
    NotFound,
    RequestEntityTooLarge,
    RequestTimeout,
)
from werkzeug.routing import MapAdapter

from caldrix.errors import CaldrixError
from caldrix.http.config import ServerConfig
from caldrix.http.content_coding import content_coding
from caldrix.http.errors import ApiError, api_error, body_too_large, error_body, internal_error
from caldrix.http.event_output import EventOutput, event_output
from caldrix.http.exchange import Answer, EventStream, Incoming, Route
from caldrix.http.hosts import check_host, is_loopback
from caldrix.http.service import Service
from caldrix.http.sse import encode_event
from caldrix.http.telemetry import Telemetry
from caldrix.http.watch import RequestWatch

_log = structlog.get_logger(__name__)

_watch: ContextVar[RequestWatch] = ContextVar("watch")
"""That of the request that a task is at."""


class _StreamResponse(TrioResponse):
    """Carries an `EventStream` through the framework to `_HttpConnection`."""

    def __init__(self, stream: EventStream) -> None:
        super().__init__()
        self.stream = stream


class _HttpConnection(TrioASGIHTTPConnection):
    app: _Application

    async def handle_request(  # type: ignore[override]  # as quart_trio's own does, over quart's
        self, nursery: trio.Nursery, request: Request, send: ASGISendCallable
    ) -> None:
        watch = self.app.watch(request)
        _watch.set(watch)
        with watch.open():
            try:
                # Not the framework's headers: it gives a request of HTTP/1.0 a Host that it lacks.
                sent = {name: value.decode("latin-1") for name, value in self.scope["headers"]}
                self.app.check_host(sent.get(b"host"))
            except ApiError as error:
                await self._send_response(send, _error_response(error))
                nursery.cancel_scope.cancel()
            else:
                await super().handle_request(nursery, request, send)

    async def _send_response(self, send: ASGISendCallable, response: ResponseTypes) -> None:
        if isinstance(response, _StreamResponse):
            await self._send_stream(send, response.stream)
        else:
            _watch.get().end(response.status_code)
            await super()._send_response(send, response)

    async def _send_stream(self, send: ASGISendCallable, stream: EventStream) -> None:
        async with event_output(send, headers=stream.headers, silence=self.app.silence) as output:
            failure = await _relay(stream, output)
        if failure is not None and not output.begun:
            await self._send_response(send, _error_response(failure))
            return
        if failure is not None:
            _watch.get().end(failure.status)
            await output.send(encode_event(error_body(failure)))
        await output.end()


class _Application(QuartTrio):
    asgi_http_class = _HttpConnection

    def __init__(self, telemetry: Telemetry, config: ServerConfig, routes: Sequence[Route]) -> None:
        super().__init__(__name__, static_folder=None)
        self._telemetry = telemetry
        self._recorded = {(route.method, route.path) for route in routes if route.recorded}
        self.silence = config.timeouts.comment
        self._allowed_hosts = config.allow_host if is_loopback(config.host) else None
        self.debug = False
        self.url_map.merge_slashes = False
        self.config.update(
            RESPONSE_TIMEOUT=None,
            BODY_TIMEOUT=config.body_timeout,
            MAX_CONTENT_LENGTH=config.most_body,
        )
        self.register_error_handler(Exception, self._handle_error)

    def check_host(self, header: str | None) -> None:
        """Refuses a Host that is none of this server's names. Raises ApiError."""
        if self._allowed_hosts is not None:
            check_host(header, self._allowed_hosts)

    def watch(self, request: Request) -> RequestWatch:
        """A watch over the request; its end is told of if the route's requests are."""
        if (request.method, request.path) in self._recorded:
            return self._telemetry.watch(request.path)
        return RequestWatch(request.path)

    def create_url_adapter(self, request: BaseRequestWebsocket | None) -> MapAdapter | None:
        """Routes by path and method; the Host, which a client makes up, has no say in it."""
        if request is None:
            return None
        return self.url_map.bind("", path_info=request.path, default_method=request.method)

    async def make_default_options_response(self) -> Response:
        """The answer to OPTIONS: the methods that the path has."""
        adapter = self.create_url_adapter(request)
        assert adapter is not None
        headers = {"Allow": ", ".join(sorted(adapter.allowed_methods()))}
        return _response(Answer(b"", content_type="text/plain; charset=utf-8", headers=headers))

    async def _handle_error(self, error: Exception) -> Response:
        return _error_response(self._as_api_error(error))

    def _as_api_error(self, error: Exception) -> ApiError:
        match error:
            case MethodNotAllowed():
                methods = ", ".join(sorted(error.valid_methods or ()))
                return ApiError(
                    405,
                    f"{request.path} does not take {request.method}; it takes {methods}",
                    headers={"Allow": methods},
                )
            case NotFound():
                return ApiError(404, f"there is nothing at {request.path}")
            case RequestEntityTooLarge():
                return body_too_large(self.config["MAX_CONTENT_LENGTH"])
            case RequestTimeout():
                timeout = self.config["BODY_TIMEOUT"]
                return ApiError(408, f"the request body did not arrive within {timeout:g} seconds")
            case HTTPException():
                return ApiError(error.code or 500, error.description or error.name)
            case _:
                return _as_told(error)


def create_app(service: Service, config: ServerConfig, routes: Sequence[Route]) -> QuartTrio:
    """The ASGI application that serves ``routes``."""
    app = _Application(service.telemetry, config, routes)
    for route in routes:
        view = _view(service, route, config.most_body)
        app.add_url_rule(route.path, route.path, view, methods=[route.method])
    return app


def _view(service: Service, route: Route, most_body: int) -> Callable[..., Awaitable[Response]]:
    async def view(**path_parameters: str) -> Response:
        # Nothing here holds on to the body, which may be large: the handler decides how long.
        answer = await route.handler(service, await receive(path_parameters))
        return _StreamResponse(answer) if isinstance(answer, EventStream) else _response(answer)

    async def receive(path_parameters: Mapping[str, str]) -> Incoming:
        incoming = Incoming(_watch.get(), path_parameters)
        if route.method != "POST":
            return incoming
        coding = content_coding(request.headers.getlist("Content-Encoding"))
        body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        if coding is not None:
            body = await trio.to_thread.run_sync(
                coding.decode, body, most_body, limiter=service.text_threads
            )
        content_type = request.headers.get("Content-Type")
        return evolve(incoming, content_type=content_type, body=body)

    return view


async def _relay(stream: EventStream, output: EventOutput) -> ApiError | None:
    """Sends a stream's events; returns what to tell the client if they ended in an error."""
    # The generator lives inside this block alone, so whatever ends the task frees its row.
    async with aclosing(stream.events) as events:
        try:
            async for event in events:
                await output.send(event)
        except Exception as error:  # noqa: BLE001  # each becomes an answer, or the end of one
            return _as_told(error)
    return None


def _as_told(error: Exception) -> ApiError:
    """What the client is told of an error; one that nobody foresaw goes to the log."""
    if isinstance(error, CaldrixError):
        return api_error(error)
    _log.error("request_failed", exc_info=error)
    return internal_error()


def _error_response(error: ApiError) -> Response:
    return _response(Answer(error_body(error), error.status, headers=error.headers))


def _response(answer: Answer) -> Response:
    response = TrioResponse(answer.body, answer.status, dict(answer.headers))
    response.headers["Content-Type"] = answer.content_type
    return response
