"""A request's body: strict JSON, or a 400 that says where it is not.

Python's JSON reader takes more than JSON allows (NaN, a key twice, half a surrogate pair) and
breaks on deep nesting. What comes out of `parse_object` is exactly what the client wrote, with
nothing dropped on the way; numbers with a fraction or an exponent remember their spelling.
"""

from __future__ import annotations

import json
import math
import re
from email.message import Message
from typing import Self

from caldrix.http.errors import ApiError

MAX_DEPTH = 64
"""Levels of arrays and objects; every documented request needs fewer than ten."""

# A longer integer is past the range of a 64-bit float, which is where "too large" begins.
_MAX_INTEGER_DIGITS = 400
_MOST_QUOTED = 60
_CONSTANTS = frozenset({"NaN", "Infinity", "-Infinity"})
_SURROGATE = re.compile("[\ud800-\udfff]")

Path = tuple[str | int, ...]
"""Where a value stands in a body: keys and indices from the top."""


class SpelledFloat(float):
    """A number that is not an integer in JSON's grammar, with the digits it was written in."""

    spelling: str

    def __new__(cls, spelling: str) -> Self:
        """The nearest 64-bit float; infinite when ``spelling`` is too large for one."""
        number = super().__new__(cls, spelling)
        number.spelling = spelling
        return number


def shorten(text: str) -> str:
    """``text`` short enough to be quoted in an error."""
    return text if len(text) <= _MOST_QUOTED else f"{text[:_MOST_QUOTED]}…"


def format_path(path: Path) -> str | None:
    """The path as errors write it, as in ``messages[1].content[0]``; None for the whole body."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{shorten(step)}"
    return text.removeprefix(".") or None


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
        raise ApiError(
            400,
            f"the request body is not JSON: {error.msg} at line {error.lineno}, "
            f"column {error.colno}",
        ) from None
    except RecursionError:
        raise _too_deep() from None


class _Pairs(list[tuple[str, object]]):
    """An object as it was written: its keys in order, also those that come twice."""


def _integer(digits: str) -> int | SpelledFloat:
    return int(digits) if len(digits) <= _MAX_INTEGER_DIGITS else SpelledFloat(digits)


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
    if isinstance(value, SpelledFloat) and not math.isfinite(value):
        problem = (
            f"{value.spelling} is not a number in JSON"
            if value.spelling in _CONSTANTS
            else "the number is too large for a 64-bit float"
        )
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
