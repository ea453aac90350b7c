"""A stream's events on their way to the client, with a comment where it would be silent for long.

Proxies close connections on which nothing moves, and a request can wait for minutes: in the queue,
or for the prefill of a long prompt. A line that begins with a colon is nothing to whoever reads the
events (https://html.spec.whatwg.org/multipage/server-sent-events.html, 9.2.7).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import trio
from hypercorn.typing import ASGISendCallable

from caldrix.http.sse import COMMENT, CONTENT_TYPE

_HEADERS = {"content-type": CONTENT_TYPE, "cache-control": "no-cache"}


class EventOutput:
    """The answer that carries a stream; its head is sent with the first event or comment."""

    def __init__(self, send: ASGISendCallable, headers: Mapping[str, str], turn: trio.Lock) -> None:
        self._send = send
        self._headers = [(name.encode(), text.encode()) for name, text in headers.items()]
        self._turn = turn
        self._begun = False
        self._last_sent = trio.current_time()

    @property
    def begun(self) -> bool:
        """Whether the client has the status already, so that an error must be an event."""
        return self._begun

    async def send(self, events: bytes) -> None:
        """Sends events, whole ones."""
        try:
            # Mostly free; to acquire it the other way lets all other tasks run, for each token.
            self._turn.acquire_nowait()
        except trio.WouldBlock:
            await self._turn.acquire()
        try:
            await self._put(events)
        finally:
            self._turn.release()

    async def end(self) -> None:
        """Ends the answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def fill_silences(self, seconds: float) -> None:
        """Sends a comment whenever nothing was sent for ``seconds``; has no end."""
        while True:
            due = self._last_sent + seconds
            if trio.current_time() < due:
                await trio.sleep_until(due)
                continue
            async with self._turn:
                # An event may have been on its way meanwhile.
                if self._last_sent + seconds == due:
                    await self._put(COMMENT)

    async def _put(self, body: bytes) -> None:
        if not self._begun:
            self._begun = True
            await self._send(
                {"type": "http.response.start", "status": 200, "headers": self._headers}
            )
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        self._last_sent = trio.current_time()


@asynccontextmanager
async def event_output(
    send: ASGISendCallable, *, headers: Mapping[str, str], silence: float
) -> AsyncIterator[EventOutput]:
    """Where to send a stream's events; within the block comments fill longer silences.

    ``headers`` are the answer's, beside those of every stream; ``silence`` is in seconds. Whoever
    sends stays one task: a generator of events must run in one, and could not be asked for its next
    event with a deadline, for that would end it.
    """
    # Held while something is sent, so that neither an event nor a comment gets into the other.
    turn = trio.Lock()
    output = EventOutput(send, {**_HEADERS, **headers}, turn)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.fill_silences, silence)
        yield output
        async with turn:
            nursery.cancel_scope.cancel()
