"""Clients that read streamed answers as cheaply as can be, since they share the server's cores.

All of them stand in one thread. They count the events of their answers and read nothing else.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from json import dumps
from typing import TypeAlias

from attrs import define, field, frozen

from caldrix.errors import CaldrixError

Address: TypeAlias = tuple[str, int]

_EVENT_END = b"\n\n"
"""In JSON and in HTTP's framing it never stands elsewhere."""
_AROUND_TEXT = 2
"""Events of an answer that carry no text: the finish reason, and [DONE]."""
_BUFFER = 2**16
_PATIENCE = 30.0


class UnexpectedAnswer(CaldrixError):
    """An answer that is not the stream that was asked for."""


@frozen
class Decoding:
    """What clients saw of the time in which all of them were given tokens."""

    tokens: int
    seconds: float
    client_cpu: float
    """Seconds of processor time that the clients took, from their requests to their ends."""

    @property
    def rate(self) -> float:
        """Tokens a second, of all clients together."""
        return self.tokens / self.seconds


@define
class _Client:
    connection: socket.socket
    arrivals: list[tuple[float, int]] = field(factory=list)
    """When something came, and how many events had come by then."""
    events: int = 0
    last: bytes = b""
    """The byte received last: what it begins may end with the next one."""

    def take(self, data: bytes, now: float) -> None:
        """Counts the events that end in ``data``."""
        if not self.last and not data.startswith(b"HTTP/1.1 200"):
            raise UnexpectedAnswer(f"the server answered {data[:300]!r}")
        new = data.count(_EVENT_END)
        if self.last + data[:1] == _EVENT_END:
            new += 1
        if new:
            self.events += new
            self.arrivals.append((now, self.events))
        self.last = data[-1:]


def decode(address: Address, bodies: Sequence[Mapping[str, object]], tokens: int) -> Decoding:
    """Sends the requests at once, each for a stream of ``tokens`` tokens, and reads the answers.

    The time counted is that in which all answers have begun and none has ended. Raises
    UnexpectedAnswer, also for an answer with less than an event for each token: events could then
    not stand for tokens.
    """
    requests = [_request(body) for body in bodies]
    cpu = time.thread_time()
    with _connections(address, len(requests)) as connections:
        clients = [_Client(connection) for connection in connections]
        for client, request in zip(clients, requests, strict=True):
            client.connection.sendall(request)
        _read_all(clients)
    cpu = time.thread_time() - cpu
    for client in clients:
        if client.events != tokens + _AROUND_TEXT:
            raise UnexpectedAnswer(
                f"an answer of {tokens} tokens came in {client.events} events, "
                f"and {tokens + _AROUND_TEXT} were expected"
            )
    began = max(client.arrivals[0][0] for client in clients)
    ended = min(_time_of(client, tokens) for client in clients)
    counted = sum(_count_at(client, ended) - _count_at(client, began) for client in clients)
    return Decoding(counted, ended - began, cpu)


def _read_all(clients: Sequence[_Client]) -> None:
    # Not by the module selectors, which costs more than the reading does.
    poll = select.poll()
    reading = {client.connection.fileno(): client for client in clients}
    for descriptor in reading:
        poll.register(descriptor, select.POLLIN)
    while reading:
        ready = poll.poll(_PATIENCE * 1000)
        if not ready:
            raise UnexpectedAnswer(f"nothing came for {_PATIENCE:g} seconds")
        now = time.perf_counter()
        for descriptor, _ in ready:
            data = os.read(descriptor, _BUFFER)
            if data:
                reading[descriptor].take(data, now)
            else:
                del reading[descriptor]
                poll.unregister(descriptor)


def _time_of(client: _Client, event: int) -> float:
    """When the client had so many events."""
    return next(when for when, events in client.arrivals if events >= event)


def _count_at(client: _Client, moment: float) -> int:
    """Events that the client had by then."""
    return max((events for when, events in client.arrivals if when <= moment), default=0)


@contextmanager
def _connections(address: Address, count: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(address, _PATIENCE)) for _ in range(count)
        ]


def _request(body: Mapping[str, object]) -> bytes:
    content = dumps(body).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\n"
        "Host: localhost\r\n"
        "Connection: close\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
