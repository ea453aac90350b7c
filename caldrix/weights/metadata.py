"""What a GGUF file says about itself, with getters that name the key at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from caldrix.weights.errors import CorruptFile

T = TypeVar("T")
D = TypeVar("D")

_REQUIRED: Any = object()


class Metadata(Mapping[str, object]):
    """A file's key-value pairs, in its order.

    Values are str, bool, int, float, and lists of one of these. Each typed getter raises
    CorruptFile when the value is of another type, and, unless a default is given, when the key is
    missing; an integer is no boolean, and a number may be written as an integer.
    """

    def __init__(self, path: Path, values: Mapping[str, object]) -> None:
        self._path = path
        self._values = values

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def string(self, key: str) -> str: ...
    @overload
    def string(self, key: str, default: D) -> str | D: ...
    def string(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string."""
        return self._one(key, str, "a string", default)

    @overload
    def boolean(self, key: str) -> bool: ...
    @overload
    def boolean(self, key: str, default: D) -> bool | D: ...
    def boolean(self, key: str, default: Any = _REQUIRED) -> Any:
        """A boolean."""
        return self._one(key, bool, "a boolean", default)

    @overload
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: D) -> int | D: ...
    def integer(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width."""
        return self._one(key, int, "an integer", default)

    @overload
    def number(self, key: str) -> float: ...
    @overload
    def number(self, key: str, default: D) -> float | D: ...
    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """A float or an integer, as a float."""
        value = self._one(key, (float, int), "a number", default)
        return float(value) if isinstance(value, int) and key in self._values else value

    @overload
    def strings(self, key: str) -> list[str]: ...
    @overload
    def strings(self, key: str, default: D) -> list[str] | D: ...
    def strings(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of strings."""
        return self._list(key, str, "a list of strings", default)

    @overload
    def integers(self, key: str) -> list[int]: ...
    @overload
    def integers(self, key: str, default: D) -> list[int] | D: ...
    def integers(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of integers."""
        return self._list(key, int, "a list of integers", default)

    @overload
    def numbers(self, key: str) -> list[float]: ...
    @overload
    def numbers(self, key: str, default: D) -> list[float] | D: ...
    def numbers(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of floats."""
        return self._list(key, float, "a list of floats", default)

    @overload
    def booleans(self, key: str) -> list[bool]: ...
    @overload
    def booleans(self, key: str, default: D) -> list[bool] | D: ...
    def booleans(self, key: str, default: Any = _REQUIRED) -> Any:
        """A list of booleans."""
        return self._list(key, bool, "a list of booleans", default)

    def _one(
        self, key: str, kind: type[T] | tuple[type, ...], wanted: str, default: object
    ) -> object:
        if key not in self._values:
            return self._default(key, default)
        value = self._values[key]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self._wrong(key, wanted)
        return value

    def _list(self, key: str, kind: type[T], wanted: str, default: object) -> object:
        if key not in self._values:
            return self._default(key, default)
        value = self._values[key]
        # An array's elements are of one type, so the first stands for all.
        if not isinstance(value, list) or (value and type(value[0]) is not kind):
            raise self._wrong(key, wanted)
        return value

    def _default(self, key: str, default: object) -> object:
        if default is _REQUIRED:
            raise CorruptFile(f"{self._path} lacks the metadata key {key}")
        return default

    def _wrong(self, key: str, wanted: str) -> CorruptFile:
        return CorruptFile(f"{self._path}: the metadata key {key} is not {wanted}")
