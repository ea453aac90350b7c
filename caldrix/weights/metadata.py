"""What a GGUF file says about itself, with getters that name the key at fault."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

from caldrix.weights.errors import CorruptFile, printable

D = TypeVar("D")

_REQUIRED: Any = object()


class Metadata(Mapping[str, object]):
    """A file's key-value pairs, in its order.

    Values are str, bool, int, float, and lists of one of these. Each typed getter raises
    CorruptFile when the value is of another type, and, unless a default is given, when the key is
    missing; a boolean is no integer.
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
    def integer(self, key: str) -> int: ...
    @overload
    def integer(self, key: str, default: D) -> int | D: ...
    def integer(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer of any width."""
        return self._one(key, int, "an integer", default)

    def _one(self, key: str, kind: type, wanted: str, default: object) -> object:
        value = self._values.get(key, default)
        if value is _REQUIRED:
            raise CorruptFile(f"{self._path} lacks the metadata key {printable(key)}")
        if key in self._values and (not isinstance(value, kind) or isinstance(value, bool)):
            raise CorruptFile(f"{self._path}: the metadata key {printable(key)} is not {wanted}")
        return value
