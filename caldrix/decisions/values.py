"""JSON values that keep what a 64-bit float or a sorted map would lose: digits, and key order.

Whoever reads a request makes `Value`s of its JSON. They are written in three ways: in prompts with
numbers in one canonical form, compactly or with spaces, and in answers with the digits that the
request had.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeGuard

from attrs import evolve, frozen


@frozen
class Number:
    """A JSON number: the digits it was written in."""

    spelling: str

    @classmethod
    def of(cls, number: float) -> Number:
        """A 64-bit float as the shortest decimal that reads back to it."""
        return cls(repr(float(number)))

    @property
    def is_integer(self) -> bool:
        """Whether it is written with neither a point nor an exponent."""
        return not any(mark in self.spelling for mark in ".eE")

    @property
    def is_finite(self) -> bool:
        """Whether it is an integer, or the nearest 64-bit float is finite."""
        return self.is_integer or math.isfinite(float(self.spelling))

    @property
    def canonical(self) -> str:
        """An integer exactly; any other as the shortest decimal of the nearest 64-bit float.

        That is positional for decimal exponents from -4 to 15, with its fraction also where that
        is zero, and has a signed exponent of at least two digits otherwise: Python's own form.
        """
        if self.is_integer:
            return "0" if self.spelling == "-0" else self.spelling
        return repr(float(self.spelling))


Value: TypeAlias = "str | bool | Number | Sequence[Value] | Mapping[str, Value] | None"
"""A JSON value; the keys of its objects keep their order."""

Text: TypeAlias = "str | Sequence[Value] | Mapping[str, Value]"
"""What stands for a text: a string, or an array or object that is written as JSON."""


MANY = 8
"""Elements from which on a list in a decider's state tells their positions."""


def says_something(text: Text | None) -> TypeGuard[Text]:
    """Whether it is there; an empty string is read like a missing one."""
    return text is not None and text != ""


def written(text: Text) -> str:
    """A text as prompts of the zero-shot reading have it: a string as it is, else compact JSON."""
    return text if isinstance(text, str) else _write(text, _COMPACT)


def spaced(text: Text) -> str:
    """A text as a decider's prompts have it: a string as it is, else JSON with ``", "``, ``": "``.

    It is what Python's `json.dumps` writes of it with ``ensure_ascii=False``.
    """
    return text if isinstance(text, str) else _write(text, _SPACED)


def spaced_state(state: Text) -> Iterator[str]:
    """A state as a decider's prompts have it, piece by piece: `spaced`, with positions in lists.

    In each list of `MANY` elements or more, at any depth, an object begins with a member
    ``_index``, or keeps the value of its own one, which then comes first. Any other element becomes
    the ``value`` of such an object.
    """
    return iter((state,)) if isinstance(state, str) else _pieces(state, _PLACED)


def echoed(value: Value) -> str:
    """A value as compact JSON, its numbers in the digits they were written in."""
    return _write(value, _ECHOED)


def _placed(index: int, item: Value) -> Mapping[str, Value]:
    members = item if isinstance(item, Mapping) else {"value": item}
    return {"_index": Number(str(index)), **members}


@frozen
class _Style:
    """How JSON is written."""

    spell: Callable[[Number], str]
    comma: str = ","
    colon: str = ":"
    placed: bool = False
    """Whether the elements of long lists tell their positions."""


_COMPACT = _Style(lambda number: number.canonical)
_SPACED = _Style(lambda number: number.canonical, ", ", ": ")
_PLACED = evolve(_SPACED, placed=True)
_ECHOED = _Style(lambda number: number.spelling)


def _write(value: Value, style: _Style) -> str:
    return "".join(_pieces(value, style))


def _pieces(value: Value, style: _Style) -> Iterator[str]:
    """What is written, of which not all is in memory at once."""
    match value:
        case Number():
            yield style.spell(value)
        case str() | bool() | None:
            yield _quoted(value)
        case Mapping():
            yield "{"
            for index, (key, item) in enumerate(value.items()):
                yield f"{style.comma if index else ''}{_quoted(key)}{style.colon}"
                yield from _pieces(item, style)
            yield "}"
        case _:
            placed = style.placed and len(value) >= MANY
            yield "["
            for index, item in enumerate(value):
                if index:
                    yield style.comma
                yield from _pieces(_placed(index, item) if placed else item, style)
            yield "]"


def _quoted(value: str | bool | None) -> str:
    """A value without parts; of a string, only what JSON must escape is escaped."""
    return json.dumps(value, ensure_ascii=False)
