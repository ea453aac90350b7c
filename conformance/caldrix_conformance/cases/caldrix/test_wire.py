"""Answers and requests as bytes: order of members, connections, framing."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.raw import request_bytes
from caldrix_conformance.target import Target

CLOSES_WITHIN = 10.0
"""Seconds; a server that closes does it at once, one that doesn't keeps it for minutes."""


@pytest.fixture(scope="session")
def texts(target: Target, some_endpoint: Endpoint) -> list[str]:
    """JSON texts as they came: an answer, an error, the list of models, chunks."""
    prompt = some_endpoint.prompt("One, two, three,")
    answers = (
        target.ask(some_endpoint, **prompt, max_tokens=3),
        target.ask(some_endpoint, top_p=2),
        target.get("/v1/models"),
    )
    options = {"include_usage": True}
    events = target.stream(some_endpoint, **prompt, max_tokens=3, stream_options=options).events
    chunks = (event.data for event in events if event.data != "[DONE]")
    return [*(answer.body.decode() for answer in answers), *chunks]


def unsorted_objects(text: str) -> Iterator[list[str]]:
    """The keys of each object in ``text`` whose keys are not in alphabetical order."""
    found: list[list[str]] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        keys = [key for key, _ in pairs]
        if keys != sorted(keys):
            found.append(keys)

    try:
        json.loads(text, object_pairs_hook=look)
    except ValueError:
        raise AssertionError(f"not JSON: {text!r}") from None
    yield from found


@checks("wire.keys.sorted")
def test_sorted(texts: list[str]) -> None:
    found = [keys for text in texts for keys in unsorted_objects(text)]
    assert not found, f"the members come in the order {found[0]}"


@checks("wire.compact")
def test_compact(texts: list[str]) -> None:
    for text in texts:
        compact = json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
        spare = len(text) - len(compact)
        # Escapes of a server's own choice make a text longer too, and are not judged here.
        escaped = json.dumps(json.loads(text), separators=(",", ":"))
        assert spare <= len(escaped) - len(compact), f"{spare} spare characters: {text!r}"


@checks("wire.connection.kept")
def test_kept(target: Target) -> None:
    with target.connection() as connection:
        for _ in range(3):
            connection.send(request_bytes("GET", "/v1/models", target.host_header))
            answer = connection.answer()
            assert answer.status == 200, f"wanted 200, got {answer.seen}"


@checks("wire.connection.close")
def test_close(target: Target) -> None:
    with target.connection() as connection:
        request = request_bytes("GET", "/v1/models", target.host_header, Connection="close")
        connection.send(request)
        assert connection.closes_within(CLOSES_WITHIN), "the connection stays open"


@checks("wire.connection.half-closed")
def test_half_closed(target: Target) -> None:
    with target.connection() as connection:
        connection.send(request_bytes("GET", "/v1/models", target.host_header))
        connection.end_sending()
        answer = connection.answer()
    assert answer.status == 200, f"wanted 200, got {answer.seen}"


@checks("wire.request.chunked")
def test_chunked(target: Target, some_endpoint: Endpoint) -> None:
    body = json.dumps(target.body(some_endpoint, {})).encode()
    pieces = (body[start : start + 10] for start in range(0, len(body), 10))
    headers = {"Content-Type": "application/json"}
    target.send("POST", some_endpoint.path, content=pieces, headers=headers).expect(200)


@checks("wire.request.pieces")
def test_pieces(target: Target, some_endpoint: Endpoint) -> None:
    value = target.body(some_endpoint, {})
    request = request_bytes("POST", some_endpoint.path, target.host_header, value)
    with target.connection() as connection:
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(request), 40):
            connection.send(request[start : start + 40])
            time.sleep(0.005)
        answer = connection.answer()
    assert answer.status == 200, f"wanted 200, got {answer.seen}"


@checks("wire.request.websocket")
def test_websocket(target: Target) -> None:
    upgrade = request_bytes(
        "GET",
        "/v1/models",
        target.host_header,
        Connection="Upgrade",
        Upgrade="websocket",
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",
        Sec_WebSocket_Version="13",
    )
    with target.connection() as connection:
        connection.send(upgrade + b"x")
        # Whatever it answers is its own affair; it must be there afterwards.
        connection.everything(within=2)
    target.get("/v1/models").expect(200)


@checks("wire.media-type")
def test_media_type(target: Target, some_endpoint: Endpoint) -> None:
    seen = target.ask(some_endpoint).expect(200).headers.get("content-type", "")
    assert seen.partition(";")[0].strip() == "application/json", f"content-type is {seen!r}"
