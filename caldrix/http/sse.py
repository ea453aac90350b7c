"""Server-sent events as bytes: https://html.spec.whatwg.org/multipage/server-sent-events.html.

An encoder without IO and without state: the caller sends what it returns.
"""

from __future__ import annotations

import re

CONTENT_TYPE = "text/event-stream"
COMMENT = b": keep-alive\n\n"
"""Bytes that keep a connection in use; to a reader of events they are nothing."""

# What the standard's parser takes for an end of line; str.splitlines knows more of them.
_LINE_END = re.compile("\r\n|\r|\n")


def encode_event(data: str | bytes) -> bytes:
    """An event that a client receives as ``data``; ends of line inside it arrive as newlines."""
    text = data.decode() if isinstance(data, bytes) else data
    lines = [f"data: {line}" for line in _LINE_END.split(text)]
    return ("\n".join(lines) + "\n\n").encode()
