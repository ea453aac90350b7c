"""Server-sent events, read strictly: sans-IO, after the WHATWG HTML standard, section 9.2.6.

A browser forgives a stream that ends inside an event; a check must not.
"""

from __future__ import annotations

import re

from attrs import frozen

_LINE_END = re.compile(r"\r\n|\n|\r")


class FramingError(AssertionError):
    """The bytes are not a whole stream of events."""


@frozen
class Event:
    """A dispatched event; ``name`` is "message" where the stream gave none."""

    data: str
    name: str = "message"


def parse_events(body: bytes) -> tuple[Event, ...]:
    """The events of a finished stream.

    Comments are passed over. Raises FramingError for bytes that are not UTF-8, for a line that is
    no field of an event, and for a stream that ends before the blank line of its last event.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise FramingError(f"the event stream is not UTF-8 at byte {error.start}") from None
    *lines, rest = _LINE_END.split(text)
    if rest:
        raise FramingError(f"the event stream ends inside a line: {rest[-80:]!r}")
    events: list[Event] = []
    data: list[str] = []
    name = "message"
    for line in lines:
        if not line:
            if data:
                events.append(Event("\n".join(data), name))
            data, name = [], "message"
            continue
        field, value = _field(line)
        if field == "data":
            data.append(value)
        elif field == "event":
            name = value
    if data:
        raise FramingError("the event stream ends without the blank line that ends an event")
    return tuple(events)


_FIELDS = frozenset({"data", "event", "id", "retry", ""})


def _field(line: str) -> tuple[str, str]:
    field, _, value = line.partition(":")
    if field not in _FIELDS:
        raise FramingError(f"a line of the event stream is no field of an event: {line[:80]!r}")
    return field, value.removeprefix(" ")
