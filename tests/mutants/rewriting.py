"""The words that mutations are written in: which exchanges, and what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from tests.mutants.exchange import Reply, Request, Tell, to_json

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The model of the server that is made wrong."""
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
OK, REFUSED = range(200, 201), range(400, 500)

Json = dict[str, Any]
Picks = Callable[[Request], bool]
Ask = Callable[[Request], Request]
Events = Callable[[Iterator[bytes]], Iterator[bytes]]


# Which exchanges


def to(*paths: str) -> Picks:
    """Requests to these routes."""
    return lambda request: request.path in paths


generating = to(CHAT, COMPLETIONS)
chat = to(CHAT)
completions = to(COMPLETIONS)


def given(*names: str) -> Picks:
    """Requests that have one of these fields, whatever its value."""
    return lambda request: not request.fields.keys().isdisjoint(names)


def lacking(*names: str) -> Picks:
    """Requests of the generating routes that have none of these fields."""
    return lambda request: generating(request) and request.fields.keys().isdisjoint(names)


def where(test: Callable[[Json], Any]) -> Picks:
    """Requests with a JSON object for which ``test`` holds."""
    return lambda request: bool(request.fields) and bool(test(request.fields))


def all_of(*picks: Picks) -> Picks:
    """Requests that each of ``picks`` takes."""
    return lambda request: all(pick(request) for pick in picks)


streamed = where(lambda fields: fields.get("stream") is True)
whole = all_of(generating, where(lambda fields: fields.get("stream") is not True))


# Which clauses


def both(*names: str) -> tuple[str, ...]:
    """The clauses of both endpoints' streams, by what comes after streaming."""
    areas = ("streaming", "completions.streaming")
    return tuple(f"{area}.{name}" for name in names for area in areas)


# What the server gets to see


def fields(change: Callable[[Json], Json]) -> Ask:
    """Another JSON object in the body."""

    def ask(request: Request) -> Request:
        if not request.fields:
            return request
        changed = change(request.fields)
        # A request that stays as it was goes through in its own bytes.
        same = changed == request.fields
        return request if same else evolve(request, body=json.dumps(changed).encode())

    return ask


def without(*names: str) -> Ask:
    """Fields left out."""
    return fields(lambda body: {key: body[key] for key in body if key not in names})


def with_header(name: str, value: str) -> Ask:
    """Another value of a header."""

    def ask(request: Request) -> Request:
        rest = tuple(pair for pair in request.headers if pair[0].lower() != name)
        return evolve(request, headers=(*rest, (name, value)))

    return ask


# What the client gets to see


def status(code: int) -> Tell:
    """Another status."""
    return lambda reply, _: evolve(reply, status=code)


def header(name: str, value: str) -> Tell:
    """Another value of a header."""
    return lambda reply, _: reply.with_header(name, value)


def body(content: bytes, media_type: str, code: int | None = None) -> Tell:
    """Another body."""

    def tell(reply: Reply, _: Request) -> Reply:
        changed = evolve(reply, status=code or reply.status, body=(content,), whole=True)
        return changed.with_header("content-type", media_type)

    return tell


def refusal(message: str, param: str | None = None, code: int = 400) -> Tell:
    """An error object in place of whatever came."""
    error = {"code": None, "message": message, "param": param, "type": "invalid_request_error"}
    return body(to_json({"error": error}), "application/json", code)


def text(change: Callable[[bytes], bytes]) -> Tell:
    """Other bytes in the body of a whole reply."""
    return lambda reply, _: evolve(reply, body=(change(reply.text),)) if reply.whole else reply


def value(change: Callable[[Any], Any]) -> Tell:
    """Another JSON value in the body of a whole reply."""
    return lambda reply, _: reply.with_value(change(reply.value)) if reply.whole else reply


def error(**members: Any) -> Tell:
    """Other members of an error object; ... takes one out."""

    def change(answer: Json) -> Json:
        changed = answer["error"] | members
        return {"error": {key: changed[key] for key in changed if changed[key] is not ...}}

    return value(change)


def choice(change: Callable[[Json], Json]) -> Tell:
    """Another choice in a whole answer."""
    return value(lambda answer: answer | {"choices": [change(answer["choices"][0])]})


def says(change: Callable[[str], str]) -> Tell:
    """Another text in a whole answer."""

    def changed(choice: Json) -> Json:
        if "message" in choice:
            message = choice["message"]
            return choice | {"message": message | {"content": change(message["content"])}}
        return choice | {"text": change(choice["text"])}

    return choice_if_any(changed)


def choice_if_any(change: Callable[[Json], Json]) -> Tell:
    """As `choice`, for replies that may be refusals too."""
    changed = choice(change)
    return lambda reply, request: changed(reply, request) if reply.status == 200 else reply


def usage(change: Callable[[Json], Json]) -> Tell:
    """Other counts in a whole answer."""
    return value(lambda answer: answer | {"usage": change(answer["usage"])})


def events(change: Events) -> Tell:
    """Other events in a stream."""
    return lambda reply, _: reply if reply.whole else evolve(reply, body=change(iter(reply.body)))


def event(value: Any) -> bytes:
    """An event that carries a JSON value."""
    return b"data: %b\n\n" % to_json(value)


def of_event(data: bytes) -> Json | None:
    """The JSON object in an event; None for [DONE]."""
    payload = data.removeprefix(b"data: ").strip()
    return None if payload == b"[DONE]" else json.loads(payload)


def chunks(change: Callable[[Json], Json | None]) -> Tell:
    """Other chunks in a stream, None for one less."""

    def changed(stream: Iterator[bytes]) -> Iterator[bytes]:
        for data in stream:
            chunk = of_event(data)
            if chunk is None:
                yield data
            elif (other := change(chunk)) is not None:
                yield event(other)

    return events(changed)


def objects(change: Callable[[Json], Json]) -> Tell:
    """Another whole answer, and the same change to each chunk of a stream."""
    in_answer, in_chunks = value(change), chunks(change)
    return lambda reply, request: (in_answer if reply.whole else in_chunks)(reply, request)


def chunk_choice(change: Callable[[Json], Json]) -> Tell:
    """Another choice in each chunk that has one."""

    def changed(chunk: Json) -> Json:
        return chunk | {"choices": [change(choice) for choice in chunk["choices"]]}

    return chunks(changed)


def chunk_text(choice: Json) -> str:
    """The text of a chunk's choice, "" for none."""
    return str(choice["delta"].get("content", "") if "delta" in choice else choice["text"])


def with_chunk_text(choice: Json, text: str) -> Json:
    """A chunk's choice with another text."""
    if "delta" in choice:
        return choice | {"delta": choice["delta"] | {"content": text}}
    return choice | {"text": text}
