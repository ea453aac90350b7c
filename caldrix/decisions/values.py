"""JSON values that keep what a 64-bit float or a sorted map would lose: digits, and key order.

Whoever reads a request makes `Value`s of its JSON. They are written in two ways: in prompts with
numbers in one canonical form, and in answers with the digits that the request had.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from attrs import frozen


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


def written(text: Text) -> str:
    """A text as prompts of the zero-shot reading have it: a string as it is, else compact JSON."""
    return text if isinstance(text, str) else _write(text, lambda number: number.canonical)


def echoed(value: Value) -> str:
    """A value as compact JSON, its numbers in the digits they were written in."""
    return _write(value, lambda number: number.spelling)


def _write(value: Value, spell: Callable[[Number], str]) -> str:
    if isinstance(value, Number):
        return spell(value)
    if isinstance(value, Mapping):
        members = (f"{_quoted(key)}:{_write(item, spell)}" for key, item in value.items())
        return f"{{{','.join(members)}}}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{','.join(_write(item, spell) for item in value)}]"
    return _quoted(value)


def _quoted(value: str | bool | None) -> str:
    """A value without parts; of a string, only what JSON must escape is escaped."""
    return json.dumps(value, ensure_ascii=False)
