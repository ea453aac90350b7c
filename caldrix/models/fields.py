"""Typed reading of a model's description: config.json, or the metadata of a GGUF file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs
from attrs import frozen

from caldrix.errors import Refusal, quoted

_LARGEST = 2**31 - 1


class UnsupportedModel(Refusal):
    """The checkpoint describes a model that caldrix doesn't run, or describes it wrongly."""


@frozen
class Fields:
    """A mapping whose values are checked as they are read.

    ``where`` names the file for messages; ``prefix`` is put before each key (``llama.``). A
    missing key takes the default, where there is one; a null counts as missing.
    """

    where: str
    values: Mapping[str, object]
    prefix: str = ""

    def __contains__(self, key: str) -> bool:
        return self.values.get(self.prefix + key) is not None

    def with_defaults(self, defaults: Mapping[str, object]) -> Fields:
        """The same, where a key that is missing or null has the value of ``defaults``."""
        present = {key: value for key, value in self.values.items() if value is not None}
        return attrs.evolve(self, values={**defaults, **present})

    def integer(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number from ``least`` to 2**31 - 1."""
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _LARGEST:
            raise self._wrong(key, value, f"a whole number from {least} to {_LARGEST}")
        return value

    def number(self, key: str, default: float | None = None, *, least: float = 0.0) -> float:
        """A finite number above 0, and of at least ``least``."""
        value = self._get(key, default)
        number = _finite(value)
        if number is None or number <= 0 or number < least:
            expected = f"a number of at least {least:g}" if least else "a positive number"
            raise self._wrong(key, value, expected)
        return number

    def flag(self, key: str, default: bool | None = None) -> bool:
        """True or false."""
        value = self._get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def texts(self, key: str) -> Sequence[str]:
        """A list of strings."""
        value = self._get(key, None)
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self._wrong(key, value, "a list of strings")
        for item in value:
            if not isinstance(item, str):
                raise self._wrong(key, item, "a list of strings")
        return list(value)

    def section(self, key: str) -> Fields:
        """A nested mapping."""
        value = self._get(key, None)
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a mapping")
        return Fields(f"{self.where}: {key}", value)

    def require(self, key: str, *allowed: object) -> None:
        """Refuses a present key whose value is not one of those that are implemented."""
        value = self.values.get(self.prefix + key)
        if value is not None and not any(_same(value, each) for each in allowed):
            raise UnsupportedModel(
                f"{self.where}: {self.prefix}{key} is {quoted(value)}, which is not supported"
            )

    def _get(self, key: str, default: object) -> object:
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            raise UnsupportedModel(f"{self.where} lacks {self.prefix}{key}")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{self.where}: {self.prefix}{key} is {quoted(value)}, not {expected}"
        )


def _same(value: object, other: object) -> bool:
    """Whether they are the same JSON value: to Python, 1 is True."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def _finite(value: object) -> float | None:
    """A number as a float64; None for what is no number or is out of its range."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
