"""One client's connection: the socket, its two directions, and every deadline on them.

It takes the place of Hypercorn's own loop, which can be ended by one client's error, waits without
a limit for a reader that does not read, and takes an end of sending for a disconnect.
"""

from __future__ import annotations

import socket

import structlog
import trio
from hypercorn.events import Closed, Event, RawData, Updated

from caldrix.http.http1 import HeadBegun, Http1, HttpServer, RequestTasks

_log = structlog.get_logger(__name__)

_READ_SIZE = 2**16
_WRITE_SIZE = 2**16


class Connection:
    """A client's connection, served by `run` until it is over."""

    def __init__(
        self,
        server: HttpServer,
        stream: trio.SocketStream,
    ) -> None:
        self._server = server
        self._timeouts = server.timeouts
        self._stream = stream
        self._socket = _without_trio(stream.socket)
        self._send_lock = trio.Lock()
        self._patience = trio.CancelScope()
        self._protocol: Http1 | None = None
        self._gone = False
        self._finished = False
        self._head_begun = False
        self._idle_since = trio.current_time()

    async def run(self) -> None:
        """Serves requests until either side is done. Raises nothing but Cancelled."""
        try:
            await self._serve()
        except* Exception:  # noqa: BLE001  # a fault of one connection must not reach the others
            _log.exception("connection_failed")
        finally:
            # One closes it for both.
            self._socket.detach()
            await trio.aclose_forcefully(self._stream)

    async def _serve(self) -> None:
        try:
            addresses = (
                _address(self._stream.socket.getpeername()),
                _address(self._stream.socket.getsockname()),
            )
        except OSError:
            # It left before it was looked at.
            return
        async with RequestTasks() as tasks:
            protocol = Http1(self._server, tasks, *addresses, self._handle_event, self._write)
            self._protocol = protocol
            self._allow(self._timeouts.keep_alive)
            with self._patience:
                await self._read(protocol)
            if self._head_begun and not (self._gone or self._finished):
                await protocol.refuse(408, "the request's head took too long to arrive")
                with trio.move_on_after(self._timeouts.linger):
                    await self._read(protocol)
            await protocol.handle(Closed())

    def drain(self) -> None:
        """Ends the connection after the request it is busy with, or at once if it is idle."""
        if self._protocol is None or not self._protocol.busy:
            self._finish()

    @property
    def idle_since(self) -> float | None:
        """When it last had a request, or was opened; None while it has one. In trio's time."""
        busy = self._protocol is not None and self._protocol.busy
        return None if busy else self._idle_since

    def abort(self) -> None:
        """Ends the connection and the request it is busy with."""
        self._gone = True
        self._patience.cancel()

    def _sends_more(self) -> bool:
        """Whether the client has not sent all of a request that it began."""
        return self._protocol is not None and self._protocol.awaits_body

    async def _read(self, protocol: Http1) -> None:
        """Passes on what the client sends, until it has sent all."""
        while True:
            try:
                data = await self._stream.receive_some(_READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if self._finished:
                # Reading on to the client's end: closing on unread bytes would reset the
                # connection, and the client might lose the answer.
                if not data:
                    return
                continue
            await protocol.handle(RawData(bytes(data)))
            if not data:
                with trio.move_on_after(self._timeouts.half_closed):
                    await protocol.wait_not_busy()
                return

    def _allow(self, seconds: float) -> None:
        self._patience.deadline = trio.current_time() + seconds

    async def _handle_event(self, event: Event) -> None:
        match event:
            case RawData():
                await self._write(event.data)
            case Closed():
                self._finish()
            case _ if self._finished:
                # What the client may still take its time for is settled.
                pass
            case Updated(idle=True):
                self._head_begun = False
                self._idle_since = trio.current_time()
                self._allow(self._timeouts.keep_alive)
            case Updated():
                self._head_begun = False
                self._allow(float("inf"))
            case HeadBegun() if not self._head_begun:
                self._head_begun = True
                self._allow(self._timeouts.head)

    async def _write(self, data: bytes) -> None:
        """Sends ``data``; waits only where the client has much left to read."""
        if self._gone:
            return
        if not self._send_lock.locked():
            data = self._send_now(data)
        if data:
            await self._send_patiently(data)

    def _send_now(self, data: bytes) -> bytes:
        """Sends what the system takes at once, and returns the rest: mostly nothing."""
        try:
            return data[self._socket.send(data) :]
        except OSError:
            # It may just be full; where it isn't, the patient way meets the same error.
            return data

    async def _send_patiently(self, data: bytes) -> None:
        async with self._send_lock:
            if self._gone:
                return
            try:
                # A slow reader may take its time for a long answer, if only it reads.
                for start in range(0, len(data), _WRITE_SIZE):
                    with trio.fail_after(self._timeouts.write):
                        await self._stream.send_all(data[start : start + _WRITE_SIZE])
            except trio.TooSlowError:
                _log.warning("reader_stalled", seconds=self._timeouts.write)
                self.abort()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                self.abort()

    def _finish(self) -> None:
        """Ends the sending side: the client has its answer and sees that nothing follows.

        It does not wait: the task that asks may be cancelled at its next wait.
        """
        if self._finished:
            return
        self._finished = True
        # One that has sent all it had to send is not waited for when the server is going.
        going = self._server.context.terminated.is_set()
        self._allow(0 if going and not self._sends_more() else self._timeouts.linger)
        try:
            self._stream.socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort()


def _without_trio(shared: trio.socket.SocketType) -> socket.socket:
    """The socket as the standard library has it, to send what can be sent at once.

    trio's own ways to send let all other tasks run before they return, each time.
    """
    bare = socket.socket(shared.family, shared.type, shared.proto, fileno=shared.fileno())
    bare.setblocking(False)
    return bare


def _address(name: tuple[str, int] | tuple[str, int, int, int]) -> tuple[str, int]:
    return (name[0], name[1])
