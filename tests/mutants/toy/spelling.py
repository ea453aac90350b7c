"""JSON with what a parser drops: how numbers are written, and keys that come twice."""

from __future__ import annotations

import json
import math
from typing import Any, Self


class Spelled(float):
    """A number with a fraction or an exponent, and how it was written."""

    text: str

    def __new__(cls, text: str) -> Self:
        number = super().__new__(cls, text)
        number.text = text
        return number


class MinusZero(int):
    """The integer -0, which to Python is 0."""


def integer(text: str) -> int:
    return MinusZero() if text == "-0" else int(text)


class _Members(dict[str, Any]):
    twin: str | None = None


def _members(pairs: list[tuple[str, Any]]) -> _Members:
    members = _Members()
    for name, value in pairs:
        if name in members and members.twin is None:
            members.twin = name
        members[name] = value
    return members


def twin_in(raw: bytes) -> str | None:
    """Where the first key that comes twice stands; None also for what is no JSON."""
    try:
        return _twin(json.loads(raw, object_pairs_hook=_members), "")
    except (ValueError, RecursionError):
        return None


def _twin(value: Any, place: str) -> str | None:
    if isinstance(value, _Members):
        if value.twin is not None:
            return f"{place}.{value.twin}".removeprefix(".")
        inside = (_twin(member, f"{place}.{name}") for name, member in value.items())
    elif isinstance(value, list):
        inside = (_twin(item, f"{place}[{index}]") for index, item in enumerate(value))
    else:
        return None
    return next((found for found in inside if found is not None), None)


def has_infinite(value: Any) -> bool:
    if isinstance(value, dict | list):
        members = value.values() if isinstance(value, dict) else value
        return any(map(has_infinite, members))
    return isinstance(value, Spelled) and math.isinf(value)
