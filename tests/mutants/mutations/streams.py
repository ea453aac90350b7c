"""Event streams that are framed, cut, counted or worded wrongly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from attrs import evolve

from tests.mutants.exchange import Reply, Request, mutation
from tests.mutants.rewriting import (
    OK,
    Events,
    all_of,
    both,
    chunk_choice,
    chunk_text,
    chunks,
    event,
    events,
    fields,
    given,
    header,
    of_event,
    streamed,
    where,
    with_chunk_text,
    without,
)

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


FRAMING = both("bytes.*", "done", "framing")
AREAS = (
    *FRAMING,
    *both("media-type", "final.*", "usage.*", "options.*", "field.*", "refusal", "stop.*"),
    *both("text.same", "text.characters", "chunk.as-decoded", "chunk.shape"),
    *both("chunk.id", "chunk.identity", "chunk.index", "chunk.object"),
    "streaming.chunk.role",
)


def each(change: Any) -> Events:
    """Every event's bytes by themselves."""
    return lambda stream: map(change, stream)


def lost_tail(stream: Iterator[bytes]) -> Iterator[bytes]:
    """All but the last two events."""
    held: list[bytes] = []
    for data in stream:
        held.append(data)
        if len(held) > 2:
            yield held.pop(0)


def all_at_once(stream: Iterator[bytes]) -> Iterator[bytes]:
    """The texts of all chunks in the first of them."""
    told = list(stream)
    with_text = [
        chunk
        for chunk in map(of_event, told)
        if chunk and chunk["choices"] and chunk_text(chunk["choices"][0])
    ]
    rest = [data for data in told if of_event(data) not in with_text]
    if with_text:
        joined = "".join(chunk_text(chunk["choices"][0]) for chunk in with_text)
        first = with_text[0]
        yield event(first | {"choices": [with_chunk_text(first["choices"][0], joined)]})
    yield from rest


def first_chunk_twice(stream: Iterator[bytes]) -> Iterator[bytes]:
    first = next(stream)
    return itertools.chain([first, first], stream)


def second_lost(stream: Iterator[bytes]) -> Iterator[bytes]:
    return (data for number, data in enumerate(stream) if number != 1)


def swapped(stream: Iterator[bytes]) -> Iterator[bytes]:
    first, second = next(stream), next(stream)
    return itertools.chain([second, first], stream)


def broken_character(stream: Iterator[bytes]) -> Iterator[bytes]:
    """Half a character where an event begins."""
    first = next(stream)
    return itertools.chain(
        [
            first.replace(b'"content":"', b'"content":"\xf0\x9f').replace(
                b'"text":"', b'"text":"\xf0\x9f'
            )
        ],
        stream,
    )


def numbered(stream: Iterator[bytes]) -> Iterator[bytes]:
    for number, data in enumerate(stream):
        yield data.replace(b'"id":"', b'"id":"%d-' % number)


def later(stream: Iterator[bytes]) -> Iterator[bytes]:
    for number, data in enumerate(stream):
        chunk = of_event(data)
        yield data if chunk is None else event(chunk | {"created": chunk["created"] + number})


def error_inside(stream: Iterator[bytes]) -> Iterator[bytes]:
    yield next(stream)
    yield event({"error": {"code": None, "message": "no", "param": None, "type": "server_error"}})


def no_done(stream: Iterator[bytes]) -> Iterator[bytes]:
    return (data for data in stream if data != DONE)


def role_first(stream: Iterator[bytes]) -> Iterator[bytes]:
    first = of_event(peeked := next(stream))
    if first is not None and "chat" in first["object"]:
        role = {"delta": {"role": "assistant"}, "finish_reason": None, "index": 0}
        yield event(first | {"choices": [role]})
    yield peeked
    yield from stream


def usage_everywhere(chunk: Json) -> Json:
    return {"usage": None} | chunk


def reason_everywhere(choice: Json) -> Json:
    return choice | {"finish_reason": choice["finish_reason"] or "length"}


def usage_first(stream: Iterator[bytes]) -> Iterator[bytes]:
    told = list(stream)
    last = of_event(told[-2])
    return iter([told[-2], *told[:-2], told[-1]] if last and last.get("usage") else told)


def as_one_event(reply: Reply, _: Request) -> Reply:
    """A refusal as a stream of one event, with a 200."""
    told = evolve(reply, status=200, body=(b"data: " + reply.text + b"\n\n", DONE), whole=False)
    return told.with_header("content-type", "text/event-stream")


def unended(choice: Json) -> Json:
    return choice | {"finish_reason": None}


picks: Json = {"picks": all_of(streamed, given("max_tokens")), "status": OK, "areas": AREAS}

# Where no event can be read, each clause about events is broken: the first of them are enough.
unreadable = picks | {"areas": FRAMING}

MUTATIONS = [
    mutation(
        "a stream's tail is lost",
        *both(
            "bytes.done",
            "done",
            "final.empty",
            "final.reason",
            "stop.hidden",
            "usage.chunk",
            "usage.members",
            "usage.same",
        ),
        tell=events(lost_tail),
        **picks,
    ),
    mutation(
        "a stream ends without [DONE]",
        *both("bytes.done", "done", "usage.chunk"),
        tell=events(no_done),
        **picks,
    ),
    mutation(
        "[DONE] twice",
        *both("bytes.done", "done"),
        tell=events(lambda stream: itertools.chain(stream, [DONE])),
        **picks,
    ),
    mutation(
        "half a character in an event",
        *both("bytes.utf8", "done", "framing"),
        tell=events(broken_character),
        **unreadable,
    ),
    mutation(
        "events without a blank line",
        *both("bytes.done", "bytes.events", "done", "framing"),
        tell=events(each(lambda data: data[:-1])),
        **unreadable,
    ),
    mutation(
        "CRLF in streams",
        *both("bytes.done", "bytes.events"),
        tell=events(each(lambda data: data.replace(b"\n", b"\r\n"))),
        **picks,
    ),
    mutation(
        "a byte order mark",
        *both("bytes.events", "done", "framing"),
        tell=events(lambda stream: itertools.chain([b"\xef\xbb\xbf"], stream)),
        **unreadable,
    ),
    mutation(
        "a comment first",
        *both("bytes.events", "framing"),
        tell=events(lambda stream: itertools.chain([b": hello\n\n"], stream)),
        **picks,
    ),
    mutation(
        "comments between events",
        *both("bytes.done", "bytes.events"),
        tell=events(each(lambda data: data + b": ping\n\n")),
        **picks,
    ),
    mutation(
        "named events",
        *both("bytes.done", "bytes.events", "framing"),
        tell=events(each(lambda data: b"event: chunk\n" + data)),
        **picks,
    ),
    mutation(
        "no space after data:",
        *both("bytes.done", "bytes.events"),
        tell=events(each(lambda data: data.replace(b"data: ", b"data:", 1))),
        **picks,
    ),
    mutation(
        "JSON over two lines",
        *both("bytes.events"),
        tell=events(each(lambda data: data.replace(b",", b",\ndata: ", 1))),
        **picks,
    ),
    mutation(
        "events numbered by id lines",
        *both("bytes.done", "bytes.events", "framing"),
        tell=events(each(lambda data: b"id: 1\n" + data)),
        **picks,
    ),
    mutation(
        "bare JSON lines",
        *both("bytes.done", "bytes.events", "done", "framing"),
        tell=events(each(lambda data: data.removeprefix(b"data: "))),
        **unreadable,
    ),
    mutation("a role before the text", "streaming.chunk.role", tell=events(role_first), **picks),
    mutation(
        "a stream without finish_reason",
        *both("final.reason", "stop.hidden"),
        tell=chunk_choice(unended),
        **picks,
    ),
    mutation(
        "finish_reason on every chunk",
        *both("final.reason"),
        tell=chunk_choice(reason_everywhere),
        **picks,
    ),
    mutation(
        "an id for each chunk", *both("chunk.id", "chunk.identity"), tell=events(numbered), **picks
    ),
    mutation("created as the chunk goes out", *both("chunk.identity"), tell=events(later), **picks),
    mutation(
        "streams as JSON",
        *both("media-type"),
        tell=header("content-type", "application/json"),
        **picks,
    ),
    mutation(
        "streams as application/x-ndjson",
        *both("media-type"),
        tell=header("content-type", "application/x-ndjson"),
        **picks,
    ),
    mutation(
        "usage unasked",
        *both(
            "options.empty",
            "options.null",
            "options.unnamed",
            "options.usage-type",
            "usage.declined",
            "usage.unasked",
        ),
        ask=fields(lambda asked: asked | {"stream_options": {"include_usage": True}}),
        picks=all_of(
            streamed,
            where(lambda asked: not isinstance(asked.get("stream_options", {}), str | int | list)),
        ),
        areas=AREAS,
    ),
    mutation(
        "usage null on every chunk", *both("usage.unasked"), tell=chunks(usage_everywhere), **picks
    ),
    mutation(
        "usage never",
        *both("options.usage-type", "usage.chunk", "usage.members", "usage.same"),
        picks=all_of(streamed, where(lambda asked: isinstance(asked.get("stream_options"), dict))),
        ask=without("stream_options"),
        areas=AREAS,
    ),
    mutation(
        "usage counted wrong in streams",
        *both("usage.same"),
        tell=chunks(
            lambda chunk: (
                chunk
                | {"usage": chunk["usage"] | {"prompt_tokens": chunk["usage"]["prompt_tokens"] + 1}}
                if "usage" in chunk
                else chunk
            )
        ),
        **picks,
    ),
    mutation("usage first", *both("usage.chunk"), tell=events(usage_first), **picks),
    mutation(
        "usage with a choice",
        *both("usage.chunk"),
        tell=chunks(
            lambda chunk: (
                chunk
                if chunk["choices"]
                else chunk
                | {"choices": [{"delta": {}, "text": "", "finish_reason": None, "index": 0}]}
            )
        ),
        **picks,
    ),
    mutation(
        "the second event lost",
        *both("stop.hidden", "stop.released", "text.characters", "text.same"),
        tell=events(second_lost),
        **picks,
    ),
    mutation(
        "the first event twice",
        *both("stop.hidden", "stop.released", "text.characters", "text.same"),
        tell=events(first_chunk_twice),
        **picks,
    ),
    mutation(
        "two events swapped",
        *both("stop.hidden", "stop.released", "text.same"),
        "streaming.text.characters",
        tell=events(swapped),
        **picks,
    ),
    mutation(
        "all text in one chunk",
        *both("chunk.as-decoded", "stop.hidden"),
        tell=events(all_at_once),
        **picks,
    ),
    mutation(
        "an error inside a stream",
        *both("bytes.done", "done"),
        tell=events(error_inside),
        **unreadable,
    ),
    mutation(
        "a refusal as an event",
        *both("field.type", "options.type", "options.usage-type", "refusal"),
        picks=where(lambda asked: asked.get("stream")),
        status=range(400, 500),
        tell=as_one_event,
        areas=AREAS,
    ),
    mutation(
        "a text in the last chunk",
        "streaming.final.empty",
        tell=chunk_choice(
            lambda choice: with_chunk_text(choice, "") if choice["finish_reason"] else choice
        ),
        **picks,
    ),
    mutation(
        "chunks called completions",
        *both("chunk.object"),
        tell=chunks(lambda chunk: chunk | {"object": "chat.completion"}),
        **picks,
    ),
    mutation(
        "chunks without created",
        *both("chunk.identity", "chunk.shape", "usage.members"),
        tell=chunks(lambda chunk: {key: chunk[key] for key in chunk if key != "created"}),
        **picks,
    ),
    mutation(
        "streams trimmed",
        *both("stop.released", "text.characters", "text.same"),
        "completions.streaming.stop.hidden",
        tell=chunk_choice(
            lambda choice: (
                with_chunk_text(choice, chunk_text(choice).strip())
                if chunk_text(choice)
                else choice
            )
        ),
        **picks,
    ),
    mutation(
        "replacement characters",
        "streaming.text.characters",
        tell=chunk_choice(
            lambda choice: (
                with_chunk_text(
                    choice, "".join(c if c < "\x7f" else "\ufffd" for c in chunk_text(choice))
                )
                if chunk_text(choice)
                else choice
            )
        ),
        **picks,
    ),
    mutation(
        "stream not taken",
        *both("bytes.done", "bytes.events", "done", "framing"),
        picks=all_of(streamed, given("max_tokens")),
        ask=without("stream", "stream_options"),
        areas=FRAMING,
    ),
    mutation(
        "answers always streamed",
        *both("field.false"),
        picks=where(lambda asked: asked.get("stream") is False),
        ask=fields(lambda asked: asked | {"stream": True}),
        areas=AREAS,
    ),
    mutation(
        "token ids in the choices of chunks",
        "fields.token-ids.place",
        picks=all_of(streamed, given("return_token_ids")),
        status=OK,
        areas=("fields.*",),
        tell=chunks(
            lambda chunk: (
                {key: chunk[key] for key in chunk if key != "token_ids"}
                | {
                    "choices": [
                        choice | {"token_ids": chunk.get("token_ids")}
                        for choice in chunk["choices"]
                    ]
                }
            )
        ),
    ),
    mutation(
        "a chunk's token ids lost",
        "fields.token-ids.streamed",
        picks=all_of(streamed, given("return_token_ids")),
        status=OK,
        areas=("fields.*",),
        tell=chunks(
            lambda chunk: (
                chunk | {"token_ids": chunk["token_ids"][:1]}
                if chunk["choices"][0]["finish_reason"]
                else chunk | {"token_ids": []}
            )
        ),
    ),
]
