"""Requests and answers in a few words, for the one line that says what was seen.

What went over the wire in full stands in the report; a line is for reading.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_MOST_OF_A_FIELD = 48
_MOST_OF_A_BODY = 160
_MOST_PARSED = 65536

_PASSING = frozenset({"id", "object", "created", "system_fingerprint"})
"""Members of an answer that tell nothing of what is right or wrong with it."""


def asked(fields: Mapping[str, Any], absent: object) -> str:
    """The fields of a request that matter, those that are ``absent`` named as left out."""
    given = [
        f"{name} {_short(_json(value), _MOST_OF_A_FIELD)}"
        for name, value in fields.items()
        if value is not absent
    ]
    left_out = [name for name, value in fields.items() if value is absent]
    told = f" with {', '.join(given)}" if given else ""
    return f"{told} without {', '.join(left_out)}" if left_out else told


def answered(status: int, body: bytes) -> str:
    """A status with the message of the error, or with the beginning of what else there is."""
    value = _parsed(body)
    message = _message(value)
    if message is not None:
        return f"{status} saying {_short(' '.join(message.split()), _MOST_OF_A_BODY)!r}"
    if not body:
        return f"{status} with an empty body"
    if isinstance(value, dict):
        told = {name: member for name, member in value.items() if name not in _PASSING}
        return f"{status}: {_short(_json(told), _MOST_OF_A_BODY)}"
    return f"{status}: {_short(body[: 4 * _MOST_OF_A_BODY].decode('utf-8', 'replace'))!r}"


def _short(text: str, most: int = _MOST_OF_A_BODY) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parsed(body: bytes) -> Any:
    if len(body) > _MOST_PARSED:
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _message(value: Any) -> str | None:
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) and message.strip() else None
