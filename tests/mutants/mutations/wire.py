"""Connections that are kept, closed and framed otherwise than asked."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.exchange import Ending, Reply, Request, framed, head_of, mutation
from tests.mutants.rewriting import (
    OK,
    REFUSED,
    Picks,
    all_of,
    both,
    completions,
    given,
    header,
    streamed,
    to,
    whole,
)

models = to("/v1/models")


def nameless(request: Request) -> bool:
    """Over a case's own connection: a client that keeps some for later would trip anywhere."""
    return not request.header("user-agent")


def about_days(request: Request) -> bool:
    """What many cases look at: waiting for more than that would take long."""
    return b"days of the week" in request.body


def half(reply: Reply) -> Iterator[bytes]:
    """Half of a body, under the length of the whole."""
    yield head_of(reply, content_length=len(reply.text)) + reply.text[: len(reply.text) // 2]


def too_short(reply: Reply) -> Iterator[bytes]:
    """A Content-Length of one byte less."""
    yield head_of(reply, content_length=len(reply.text) - 1) + reply.text


def unended(reply: Reply) -> Iterator[bytes]:
    """A chunked stream without its last, empty chunk."""
    *pieces, _ = framed(reply)
    return iter(pieces)


def nothing(_: Reply) -> Iterator[bytes]:
    return iter(())


def to_the_end(reply: Reply) -> Iterator[bytes]:
    """Neither a length nor chunks: the body goes on until the connection ends."""
    yield head_of(reply)
    yield from reply.body


class After:
    """Requests after one of a kind, for servers that break by it."""

    def __init__(self, first: Picks, then: Picks) -> None:
        self.first, self.then, self.broken = first, then, False

    def __call__(self, request: Request) -> bool:
        if self.broken:
            return self.then(request)
        self.broken = self.first(request)
        return False


def upgrade(request: Request) -> bool:
    return bool(request.header("upgrade"))


def closing(request: Request) -> bool:
    return request.header("connection") == "close"


MUTATIONS = [
    mutation(
        "a Content-Length too short",
        "chat.response.shape",
        "completions.response.shape",
        picks=whole,
        status=OK,
        wire=too_short,
        areas=("chat.response.shape", "completions.response.shape"),
    ),
    mutation(
        "half a body",
        "chat.response.shape",
        "completions.response.shape",
        picks=whole,
        status=OK,
        wire=half,
        then=Ending.CLOSE,
        areas=("chat.response.shape", "completions.response.shape"),
    ),
    mutation(
        "a reset in the middle",
        "chat.response.shape",
        "completions.response.shape",
        picks=whole,
        status=OK,
        wire=half,
        then=Ending.RESET,
        areas=("chat.response.shape", "completions.response.shape"),
    ),
    mutation(
        "half a body, and silence",
        "chat.response.shape",
        "completions.response.shape",
        picks=all_of(whole, about_days),
        status=OK,
        wire=half,
        then=Ending.HANG,
        timeout=1.0,
        areas=("chat.response.shape", "completions.response.shape"),
    ),
    mutation(
        "no answer at all",
        "chat.response.shape",
        "completions.response.shape",
        picks=all_of(whole, about_days),
        status=OK,
        wire=nothing,
        then=Ending.HANG,
        timeout=1.0,
        areas=("chat.response.shape", "completions.response.shape"),
    ),
    mutation(
        "a stream's last chunk is missing",
        *both("bytes.*", "done", "framing"),
        picks=streamed,
        status=OK,
        wire=unended,
        then=Ending.CLOSE,
        areas=both("bytes.*", "done", "framing"),
    ),
    mutation(
        "a closed connection after each answer",
        "wire.connection.after-stream",
        "wire.connection.kept",
        "wire.connection.pipelined",
        picks=nameless,
        wire=to_the_end,
        then=Ending.CLOSE,
    ),
    mutation(
        "a connection kept though asked to close",
        "wire.connection.close",
        picks=closing,
        tell=header("connection", "keep-alive"),
        then=Ending.KEEP,
        timeout=1.0,
    ),
    mutation(
        "a closed connection after each refusal",
        "errors.after.answers",
        picks=nameless,
        status=REFUSED,
        then=Ending.CLOSE,
        areas=("errors.after.answers",),
    ),
    mutation(
        "an upgrade stops the server",
        "wire.request.websocket",
        areas=("wire.request.websocket",),
        picks=After(upgrade, models),
        wire=nothing,
        then=Ending.CLOSE,
    ),
    mutation("who has ended its sending is gone", "wire.connection.half-closed", needs_open=True),
    mutation(
        "requests are read in one piece",
        "wire.request.pieces",
        areas=("wire.request.pieces",),
        reads_once=True,
    ),
    mutation(
        "a stream left goes on",
        "server.requests.abandoned",
        picks=After(given("ignore_eos"), completions),
        wire=nothing,
        then=Ending.HANG,
        timeout=1.0,
        areas=("server.requests.abandoned",),
    ),
]
