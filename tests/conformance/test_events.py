"""The reader of event streams: it takes what the standard takes, and nothing that is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix_conformance.events import Event, FramingError, parse_events

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"))
events = st.lists(st.builds(Event, st.lists(texts, min_size=1).map("\n".join)))
line_ends = st.sampled_from(["\n", "\r\n", "\r"])


@given(events, line_ends)
def test_reads_what_was_written(stream: list[Event], end: str) -> None:
    blocks = (end.join(f"data: {line}" for line in event.data.split("\n")) for event in stream)
    body = "".join(f"{block}{end}{end}" for block in blocks)
    assert list(parse_events(body.encode())) == stream


@given(events.filter(bool), st.data())
def test_a_cut_is_seen(stream: list[Event], data: st.DataObject) -> None:
    """Wherever a stream is cut, either whole events are left or the cut is told."""
    ends = [0]
    body = b""
    for event in stream:
        lines = "".join(f"data: {line}\n" for line in event.data.split("\n"))
        body += f"{lines}\n".encode()
        ends.append(len(body))
    cut = data.draw(st.integers(0, len(body) - 1))
    if cut in ends:
        assert list(parse_events(body[:cut])) == stream[: ends.index(cut)]
    else:
        with pytest.raises(FramingError):
            parse_events(body[:cut])


def test_fields_and_comments() -> None:
    body = b": ping\n\nevent: error\nid: 3\nretry: 10\ndata:a\ndata:  b\n\ndata\n\n"
    assert parse_events(body) == (Event("a\n b", "error"), Event(""))


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"data: \xff\n\n", "is not UTF-8 at byte 6"),
        (b'{"error": "oops"}\n\n', "is no field of an event"),
        (b"<html>\n", "is no field of an event"),
        (b"data: a\n", "without the blank line"),
        (b"data: a", "ends inside a line"),
    ],
)
def test_broken(body: bytes, complaint: str) -> None:
    with pytest.raises(FramingError, match=complaint):
        parse_events(body)
