"""Requests and replies as a mutation sees them, and what a mutation is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cached_property
from typing import Any

from attrs import define, evolve, frozen

from caldrix_conformance.target import TIMEOUT

Headers = tuple[tuple[str, str], ...]


@define(slots=False, frozen=True, kw_only=True)
class Request:
    """A request read to its end."""

    method: str
    path: str
    headers: Headers
    body: bytes

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The members of the JSON object in the body; none where it holds no such."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def header(self, name: str) -> str:
        """A header's value, "" for none."""
        return _header(self.headers, name)

    def to_bytes(self) -> bytes:
        """The request with a Content-Length, however it was framed before."""
        length = (("content-length", str(len(self.body))),) if self.method == "POST" else ()
        head = _head(f"{self.method} {self.path} HTTP/1.1", unframed(self.headers) + length)
        return head + self.body


@frozen(kw_only=True)
class Reply:
    """A reply: ``body`` is one piece, or the events of a stream as they come."""

    status: int
    headers: Headers
    """Without those that frame the body."""
    body: Iterable[bytes]
    whole: bool = True
    """Whether it is one piece; False for a stream."""

    def header(self, name: str) -> str:
        """A header's value, "" for none."""
        return _header(self.headers, name)

    def with_header(self, name: str, value: str) -> Reply:
        """This reply with one header instead of any of that name."""
        rest = tuple(pair for pair in self.headers if pair[0].lower() != name)
        return evolve(self, headers=(*rest, (name, value)))

    @property
    def text(self) -> bytes:
        """The body of a whole reply."""
        return b"".join(self.body)

    @property
    def value(self) -> Any:
        """The JSON value in the body of a whole reply."""
        return json.loads(self.text)

    def with_value(self, value: Any) -> Reply:
        """This reply with another JSON value in its body."""
        return evolve(self, body=(to_json(value),))


class Ending(Enum):
    """What becomes of a connection after a reply."""

    AS_SERVER = "as the server does it"
    KEEP = "kept, whatever was asked"
    CLOSE = "closed"
    RESET = "reset"
    HANG = "silent until the client leaves"


def framed(reply: Reply) -> Iterator[bytes]:
    """A reply's bytes, as HTTP frames them."""
    if reply.whole:
        yield head_of(reply, content_length=len(reply.text)) + reply.text
        return
    yield head_of(reply, transfer_encoding="chunked")
    for event in reply.body:
        if event:
            yield b"%x\r\n%b\r\n" % (len(event), event)
    yield b"0\r\n\r\n"


def head_of(reply: Reply, **framing: object) -> bytes:
    """A reply's status line and headers, with those that ``framing`` adds."""
    added = tuple((name.replace("_", "-"), str(value)) for name, value in framing.items())
    return _head(f"HTTP/1.1 {reply.status} Mutated", reply.headers + added)


Tell = Callable[[Reply, Request], Reply]


@frozen(kw_only=True)
class Mutation:
    """One way in which a real server is made wrong.

    It picks exchanges by their request and by the reply's status, and rewrites the request before
    the server sees it (``ask``), the reply (``tell``), its bytes (``wire``) or what comes after it.
    """

    name: str
    breaks: tuple[str, ...]
    """Globs of exactly those clauses of ``areas`` that the suite must find broken."""
    areas: tuple[str, ...]
    """Globs of the clauses that are judged."""
    picks: Callable[[Request], bool] = lambda _: True
    status: Sequence[int] = range(1000)
    ask: Callable[[Request], Request] = lambda request: request
    tell: Tell = lambda reply, _: reply
    wire: Callable[[Reply], Iterable[bytes]] = framed
    then: Ending = Ending.AS_SERVER
    reads_once: bool = False
    """Whether a request that comes in several pieces is refused."""
    needs_open: bool = False
    """Whether a client that has ended its sending gets no reply."""
    timeout: float = TIMEOUT
    """Seconds that the suite waits."""


def mutation(
    name: str, *breaks: str, areas: Iterable[str] | None = None, **rewriting: Any
) -> Mutation:
    """A mutation whose clauses are judged together with all of their areas, or of ``areas``."""
    if areas is None:
        areas = sorted({f"{clause_id.partition('.')[0]}.*" for clause_id in breaks})
    return Mutation(name=name, breaks=breaks, areas=tuple(areas), **rewriting)


def to_json(value: Any) -> bytes:
    """JSON as the contract spells it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


_FRAMING = ("content-length", "transfer-encoding")


def unframed(headers: Headers) -> Headers:
    """The headers without those that say where a body ends."""
    return tuple(pair for pair in headers if pair[0].lower() not in _FRAMING)


def _header(headers: Headers, name: str) -> str:
    return next((value for key, value in headers if key.lower() == name), "")


def _head(first: str, headers: Headers) -> bytes:
    lines = [first, *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join((*lines, "", "")).encode("latin-1")
