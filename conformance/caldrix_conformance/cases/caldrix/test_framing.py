"""Streams byte by byte, as the document prints them, whatever pieces the network makes of them."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.prompts import BEYOND_ASCII
from caldrix_conformance.raw import RawAnswer, request_bytes
from caldrix_conformance.tables import on_each
from caldrix_conformance.target import Target

DONE = b"data: [DONE]\n\n"


@pytest.fixture
def raw(target: Target, endpoint: Endpoint) -> RawAnswer:
    """A stream with its usage, read from a socket with nothing between."""
    options = {"include_usage": True}
    fields = {**endpoint.prompt("One, two, three,"), "max_tokens": 6}
    body = target.body(endpoint, {**fields, "stream": True, "stream_options": options})
    with target.connection() as connection:
        connection.send(request_bytes("POST", endpoint.path, target.host_header, body))
        answer = connection.answer()
    assert answer.status == 200, f"wanted 200, got {answer.seen}"
    return answer


@on_each("streaming.bytes.events")
def test_events(raw: RawAnswer) -> None:
    """A line that begins with ``data: ``, an empty line, and so on; no other line, no other end."""
    *events, rest = raw.body.split(b"\n\n")
    assert rest == b"", f"the stream ends in {rest[-80:]!r}, not between events"
    for event in events:
        assert event.startswith(b"data: "), f"an event begins with {event[:20]!r}"
        for end in (b"\n", b"\r"):
            assert end not in event, f"an event has more than one line: {event[:200]!r}"


@on_each("streaming.bytes.done")
def test_done(raw: RawAnswer) -> None:
    assert raw.body.endswith(b"\n\n" + DONE), f"the stream ends with {raw.body[-40:]!r}"
    assert raw.body.count(b"[DONE]") == 1, f"[DONE] comes {raw.body.count(b'[DONE]')} times"


@on_each("streaming.bytes.utf8")
def test_utf8(target: Target, endpoint: Endpoint) -> None:
    """Text beyond ASCII in the answer, which a server may cut between two of its events."""
    prompt = endpoint.prompt(BEYOND_ASCII)
    body = target.ask(endpoint, **prompt, max_tokens=12, stream=True).expect(200).body
    for event in body.split(b"\n\n"):
        try:
            event.decode()
        except UnicodeDecodeError as error:
            raise AssertionError(f"an event is not UTF-8 ({error.reason}): {event!r}") from None
