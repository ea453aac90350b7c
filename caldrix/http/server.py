"""The server: accepts connections, serves the contract's routes, and ends in good order.

Everything runs in one nursery under the caller's. Asked to stop, the server accepts no more, lets
the requests it has end by themselves for a while, then stops the engine, which ends live streams
with an error event, and last cuts whatever is still there. If the engine ends by itself, the server
says so for a moment to whoever asks, and ends the same way.
"""

from __future__ import annotations

import errno
import heapq
import math
import socket
from collections.abc import Sequence

import structlog
import trio
from attrs import field, frozen
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app

from caldrix.http import listening
from caldrix.http.app import create_app
from caldrix.http.caldrix import ROUTES
from caldrix.http.config import ServerConfig
from caldrix.http.connection import Connection
from caldrix.http.http1 import HttpServer
from caldrix.http.service import Service

_log = structlog.get_logger(__name__)

_FAREWELL = 2.0
"""Seconds for the last error events to reach their clients, and for others to be told."""

# What accept says where files or memory have run out.
_EXHAUSTION = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
_RETRY = 0.05
"""Seconds until the next try to accept, then."""
_ROOM = 64
"""Idle connections ended for each."""
_LEAST_IDLE = 0.5
"""Seconds that one has for its request before it is."""
_COMPLAINT = 60.0
"""Seconds between two lines in the log about it."""


@frozen(eq=False)
class Shutdown:
    """How a server is asked to stop."""

    requested: trio.Event = field(factory=trio.Event)
    """Stop once the requests at hand are done, or the drain timeout is over."""
    at_once: trio.Event = field(factory=trio.Event)
    """Don't wait for them any longer."""

    def request(self) -> None:
        """Asks for an end in good order, or, the second time, for an end now."""
        if self.requested.is_set():
            self.at_once.set()
        self.requested.set()


async def serve(
    service: Service,
    config: ServerConfig,
    *,
    sockets: Sequence[socket.socket] | None = None,
    shutdown: Shutdown | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until it is asked to stop, the engine ends, or it is cancelled.

    The engine is stopped when it returns; its ``failed`` tells whether it ended by itself.

    ``sockets`` come from `listening.bind` and listen; without them the config's address is taken.
    Reports the URLs it is reached at through ``task_status``. Raises AddressRefused.
    """
    if sockets is None:
        sockets = listening.bind(config.host, config.port)
        listening.listen(sockets)
    await _Server(service, config, shutdown or Shutdown()).run(sockets, task_status)


class _Server:
    def __init__(self, service: Service, config: ServerConfig, shutdown: Shutdown) -> None:
        self._service = service
        self._config = config
        self._shutdown = shutdown
        self._http = HttpServer(
            app=wrap_app(create_app(service, config, ROUTES), 0, "asgi"),
            config=_hypercorn_config(),
            context=WorkerContext(None),
            timeouts=config.timeouts,
            most_body=config.most_body,
        )
        self._connections: set[Connection] = set()
        self._all_gone = trio.Event()
        self._complains_again = -math.inf

    async def run(
        self, sockets: Sequence[socket.socket], task_status: trio.TaskStatus[list[str]]
    ) -> None:
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(s)) for s in sockets]
        urls = [listening.url(self._config.host, taken) for taken in sockets]
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                for listener in listeners:
                    accepting.start_soon(self._accept, listener, connections)
                task_status.started(urls)
                await self._wait_for_end()
                accepting.cancel_scope.cancel()
            await self._end()
            connections.cancel_scope.cancel()

    async def _wait_for_end(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after, self._shutdown.requested, nursery.cancel_scope)
            await self._service.engine.ended.wait()
            # Answers say from now on that their connections close.
            await self._http.context.terminated.set()
            _log.error("engine_ended", connections=len(self._connections))
            await trio.sleep(_FAREWELL)
            nursery.cancel_scope.cancel()

    async def _accept(self, listener: trio.SocketListener, connections: trio.Nursery) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    if error.errno not in _EXHAUSTION:
                        raise
                    self._make_room(error)
                    await trio.sleep(_RETRY)
                else:
                    connections.start_soon(self._serve_connection, stream)

    def _make_room(self, error: OSError) -> None:
        """Ends the connections that have been idle for longest: their clients can come again."""
        now = trio.current_time()
        if now >= self._complains_again:
            self._complains_again = now + _COMPLAINT
            connections = len(self._connections)
            _log.warning("connections_exhausted", reason=str(error), connections=connections)
        idle = {
            connection: since
            for connection in self._connections
            if (since := connection.idle_since) is not None and since <= now - _LEAST_IDLE
        }
        for connection in heapq.nsmallest(_ROOM, idle, key=idle.__getitem__):
            connection.abort()

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        connection = Connection(self._http, stream)
        self._connections.add(connection)
        try:
            await connection.run()
        finally:
            self._connections.discard(connection)
            if not self._connections:
                self._all_gone.set()

    async def _end(self) -> None:
        _log.info("draining", connections=len(self._connections))
        await self._http.context.terminated.set()
        for connection in tuple(self._connections):
            connection.drain()
        if not self._service.engine.stopped:
            with trio.move_on_after(self._config.drain_timeout):
                await self._first_of_gone_or_at_once()
        self._service.engine.stop()
        with trio.move_on_after(_FAREWELL):
            await self._wait_all_gone()
        if self._connections:
            _log.warning("connections_cut", connections=len(self._connections))

    async def _first_of_gone_or_at_once(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after, self._shutdown.at_once, nursery.cancel_scope)
            await self._wait_all_gone()
            nursery.cancel_scope.cancel()

    async def _cancel_after(self, event: trio.Event, scope: trio.CancelScope) -> None:
        await event.wait()
        scope.cancel()

    async def _wait_all_gone(self) -> None:
        while self._connections:
            self._all_gone = trio.Event()
            await self._all_gone.wait()


def _hypercorn_config() -> Config:
    config = Config()
    # Neither log is wanted: an access log is noise, and errors go to the server's own log.
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    return config
