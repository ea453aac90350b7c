"""Server-sent events as bytes: https://html.spec.whatwg.org/multipage/server-sent-events.html.

An encoder without IO and without state: the caller sends what it returns.
"""

from __future__ import annotations

import re

CONTENT_TYPE = "text/event-stream"

# What the standard's parser takes for an end of line; str.splitlines knows more of them.
_LINE_END = re.compile("\r\n|\r|\n")


def encode_event(data: str | bytes, *, event: str | None = None) -> bytes:
    """An event that a client receives as ``data``, with ``event`` for its type.

    Ends of line inside ``data`` arrive as newlines. Raises ValueError for an ``event`` with an end
    of line in it.
    """
    text = data.decode() if isinstance(data, bytes) else data
    lines = [f"data: {line}" for line in _LINE_END.split(text)]
    if event is not None:
        if _LINE_END.search(event):
            raise ValueError("the type of an event is one line")
        lines.insert(0, f"event: {event}")
    return ("\n".join(lines) + "\n\n").encode()


def encode_comment(text: str = "") -> bytes:
    """A comment, which clients ignore: it keeps a silent connection from being taken for dead."""
    lines = [f": {line}" if line else ":" for line in _LINE_END.split(text)]
    return ("\n".join(lines) + "\n\n").encode()
