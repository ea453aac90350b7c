"""A request's body: strict JSON, or a 400 that says where it is not.

Python's JSON reader takes more than JSON allows (NaN, a key twice, half a surrogate pair) and
breaks on deep nesting. What comes out of `parse_object` is exactly what the client wrote, with
nothing dropped on the way; numbers that are not integers in Python remember their spelling, so that
also those past the range of a 64-bit float can be told, or passed over.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from email.message import Message
from typing import Self

from caldrix.http.errors import ApiError

MAX_DEPTH = 64
"""Levels of arrays and objects; every documented request needs fewer than ten."""

_PYTHONS_DIGITS = sys.int_info.default_max_str_digits
MAX_DIGITS = min(sys.get_int_max_str_digits() or _PYTHONS_DIGITS, _PYTHONS_DIGITS)
"""Of an integer. Python reads no more by default, since the time grows with their square."""

_MOST_QUOTED = 60
_CONSTANTS = frozenset({"NaN", "Infinity", "-Infinity"})
# How Python's messages begin, and what ours say before the place.
_SYNTAX_FAULTS: Mapping[str, str] = {
    "Expecting value": "a value is missing",
    "Expecting property name": "a key in double quotes is missing",
    "Expecting ':'": "a colon is missing",
    "Expecting ','": "a comma is missing",
    "Illegal trailing comma": "a comma with nothing after it",
    "Unterminated string": "a string that does not end, begun",
    "Invalid control character": "a control character in a string",
    "Invalid \\u": "a \\u without four hexadecimal digits",
    "Invalid \\escape": "a backslash that escapes nothing",
    "Extra data": "more after the object's end",
}
_SURROGATE = re.compile("[\ud800-\udfff]")

Path = tuple[str | int, ...]
"""Where a value stands in a body: keys and indices from the top."""


class SpelledFloat(float):
    """A number with a fraction or an exponent, and the digits it was written in."""

    # A body may hold a million of them.
    __slots__ = ("spelling",)
    spelling: str

    def __new__(cls, spelling: str) -> Self:
        """The nearest 64-bit float; infinite when ``spelling`` is too large for one."""
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number


class LongInteger(SpelledFloat):
    """An integer of more than `MAX_DIGITS` digits: its value as a float, mostly an infinite one."""

    __slots__ = ()

    @property
    def refusal(self) -> str:
        """What a field that takes integers says of it."""
        digits = len(self.spelling.removeprefix("-"))
        return f"must be an integer of at most {MAX_DIGITS} digits, got one of {digits}"


class NegativeZero(int):
    """The integer that was written -0: Python's own 0 but for its sign."""


def shorten(text: str) -> str:
    """``text`` short enough to be quoted in an error."""
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"


def format_path(path: Path) -> str | None:
    """The path as errors write it, as in ``messages[1].content[0]``; None for the whole body."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{shorten(step)}"
    return text.removeprefix(".") if path else None


def parse_object(content_type: str | None, body: bytes) -> dict[str, object]:
    """The JSON object that is the body. Raises ApiError, a 400, for anything else."""
    _check_content_type(content_type)
    value = _checked(_load(body), ())
    if not isinstance(value, dict):
        raise ApiError(400, "the request body must be a JSON object")
    return value


def _check_content_type(content_type: str | None) -> None:
    if content_type is None:
        raise ApiError(400, "the request has no Content-Type; send application/json")
    header = Message()
    header["Content-Type"] = content_type
    # The parser's own answer to nonsense is text/plain, which is refused as well.
    media_type = header.get_content_type()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise ApiError(400, f"Content-Type must be application/json, got {content_type}")


def _load(body: bytes) -> object:
    if not body.strip():
        raise ApiError(400, "the request body is empty; send a JSON object")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the request body is not UTF-8: byte {error.start}") from None
    try:
        return json.loads(
            text,
            object_pairs_hook=_Pairs,
            parse_float=SpelledFloat,
            parse_constant=SpelledFloat,
            parse_int=_integer,
        )
    except json.JSONDecodeError as error:
        raise ApiError(400, f"the request body is not JSON: {_syntax_fault(error)}") from None
    except RecursionError:
        raise _too_deep() from None


def _syntax_fault(error: json.JSONDecodeError) -> str:
    if error.doc.startswith("\ufeff"):
        return "it begins with a byte order mark"
    problem = next(
        (ours for beginning, ours in _SYNTAX_FAULTS.items() if error.msg.startswith(beginning)),
        "something JSON does not have",
    )
    return f"{problem} at line {error.lineno}, column {error.colno}"


class _Pairs(list[tuple[str, object]]):
    """An object as it was written: its keys in order, also those that come twice."""


def _integer(spelling: str) -> int | LongInteger:
    if spelling == "-0":
        return NegativeZero()
    digits = len(spelling.removeprefix("-"))
    return int(spelling) if digits <= MAX_DIGITS else LongInteger(spelling)


def _checked(value: object, path: Path) -> object:
    """``value`` with its objects as dicts, once everything in it is as JSON wants it."""
    if isinstance(value, _Pairs):
        return _checked_object(value, path)
    if isinstance(value, list):
        if len(path) >= MAX_DEPTH:
            raise _too_deep()
        return [
            item if type(item) is int else _checked(item, (*path, index))
            for index, item in enumerate(value)
        ]
    if isinstance(value, str) and _SURROGATE.search(value):
        raise ApiError(400, "the string holds half a surrogate pair", param=format_path(path))
    if isinstance(value, SpelledFloat) and value.spelling in _CONSTANTS:
        problem = f"{value.spelling} is not a number in JSON"
        raise ApiError(400, problem, param=format_path(path))
    return value


def _checked_object(pairs: _Pairs, path: Path) -> dict[str, object]:
    if len(path) >= MAX_DEPTH:
        raise _too_deep()
    checked: dict[str, object] = {}
    for key, value in pairs:
        if _SURROGATE.search(key):
            raise ApiError(400, "a key holds half a surrogate pair", param=format_path(path))
        if key in checked:
            raise ApiError(
                400,
                f"the key {json.dumps(shorten(key), ensure_ascii=False)} comes twice",
                param=format_path((*path, key)),
            )
        checked[key] = _checked(value, (*path, key))
    return checked


def _too_deep() -> ApiError:
    return ApiError(400, f"the request body is nested more than {MAX_DEPTH} levels deep")
