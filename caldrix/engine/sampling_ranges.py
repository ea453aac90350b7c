"""The range of each sampling setting, and the words that state it, for whoever takes settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from attrs import frozen


class OutOfRange(ValueError):
    """A value that a range does not take; its message goes after the setting's name."""


@frozen
class NumberRange:
    """A range of numbers, and the words that state it."""

    requirement: str
    accepts: Callable[[float], bool]
    integer: bool = False

    def check(self, value: object, spell: Callable[[object], str] = str) -> float:
        """``value`` as a number, an int if the range is one of integers.

        Raises OutOfRange, with the value as ``spell`` writes it.
        """
        number = self._number(value)
        if number is None or not self.accepts(number):
            raise OutOfRange(f"must be {self.requirement}, got {spell(value)}")
        return number

    def _number(self, value: object) -> float | None:
        """The number that ``value`` is, or None; a float where an integer is wanted is none."""
        if isinstance(value, bool) or not isinstance(value, int if self.integer else int | float):
            return None
        if self.integer:
            return value
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf


SAMPLING_RANGES: Mapping[str, NumberRange] = MappingProxyType(
    {
        "temperature": NumberRange("a finite number >= 0", lambda t: 0 <= t < math.inf),
        "top_k": NumberRange("an integer >= 0, or -1", lambda k: k >= -1, integer=True),
        "top_p": NumberRange("0 < p <= 1", lambda p: 0 < p <= 1),
        "min_p": NumberRange("0 <= p <= 1", lambda p: 0 <= p <= 1),
        "repetition_penalty": NumberRange("a finite number > 0", lambda r: 0 < r < math.inf),
        "seed": NumberRange("a non-negative integer, or -1", lambda s: s >= -1, integer=True),
    }
)
"""By the names of `SamplingSettings`, and -1 for the defaults of ``top_k`` and ``seed``."""
