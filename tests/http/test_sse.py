"""Server-sent events, read back as the standard's parser reads them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.sse import encode_event


def received(stream: bytes) -> list[tuple[str, str]]:
    """(type, data) of each event, by the steps of the HTML standard's section 9.2.6."""
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    events: list[tuple[str, str]] = []
    kind, data = "", list[str]()
    for line in text.split("\n"):
        if not line:
            if data:
                events.append((kind or "message", "\n".join(data)))
            kind, data = "", list[str]()
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            data.append(value)
        elif field == "event":
            kind = value
    return events


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_data_arrives_whole(messages: list[str]) -> None:
    stream = b"".join(encode_event(message) for message in messages)
    expected = [message.replace("\r\n", "\n").replace("\r", "\n") for message in messages]
    assert received(stream) == [("message", message) for message in expected]


def test_bytes() -> None:
    assert encode_event(b'{"a":1}') == b'data: {"a":1}\n\n'
