"""What tuners have learned, kept in a file from one run to the next.

One file serves several servers: it has an entry for each model, lane and proposer, and a server
that ends replaces its own and leaves the others' as they are then. (Of two that end within the same
moment one may lose its entry, and learns again.) A file that is not understood is refused and never
overwritten: it may be something else of its owner's.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import attrs
from attrs import frozen
from cattrs import BaseValidationError, Converter, transform_error

from caldrix.engine.speculation.tuner import TunerState
from caldrix.errors import CaldrixError, Refusal

_FORMAT = "caldrix speculation memory"
_VERSION = 1
_MOST_BYTES = 16 << 20


class SpeculationMemoryUnusable(Refusal):
    """The file of ``--speculation-memory`` cannot be read, understood or written."""


class SpeculationMemoryLost(CaldrixError):
    """What was learned could not be written at the end."""


@frozen
class MemoryKey:
    """Whose tuner an entry is of."""

    model: str
    lane: str
    proposer: str


@frozen
class _Entry:
    key: MemoryKey
    state: TunerState


@frozen
class _Content:
    format: str
    version: float
    entries: tuple[_Entry, ...]

    @classmethod
    def of(cls, *entries: _Entry) -> _Content:
        return cls(_FORMAT, _VERSION, entries)


class SpeculationMemory:
    """The file, known to be whole and writable when it was opened."""

    def __init__(self, path: Path) -> None:
        """Raises SpeculationMemoryUnusable."""
        self._named = path
        # A link stays one: its target is what is replaced.
        self._path = _target(path)
        _require_writable(self._path, path)
        self._content = _read(self._path, path)

    def recall(self, key: MemoryKey, kinds: int) -> TunerState | None:
        """What a tuner of ``kinds`` kinds of guesses learned; None if none was there.

        Raises SpeculationMemoryUnusable where the entry is of another number of kinds.
        """
        for entry in self._content.entries:
            if entry.key == key:
                if len(entry.state.acceptance) != kinds:
                    _refuse(self._named, f"its entry for {key.proposer} has another shape")
                return entry.state
        return None

    def remember(self, key: MemoryKey, state: TunerState) -> None:
        """Writes the entry, beside what others have written meanwhile; atomically.

        Raises SpeculationMemoryLost.
        """
        try:
            others = [each for each in _read(self._path, self._named).entries if each.key != key]
            _write(self._path, _Content.of(*others, _Entry(key, state)))
        except SpeculationMemoryUnusable as error:
            raise SpeculationMemoryLost(f"what was learned is lost: {error}") from error
        except OSError as error:
            raise SpeculationMemoryLost(
                f"what was learned is lost: {self._named} cannot be written: {error.strerror}"
            ) from error


def _target(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a circle: the type depends on Python's version
        _refuse(path, "its links lead nowhere")


def _require_writable(path: Path, named: Path) -> None:
    """Finds out by writing beside it, as it is replaced at the end."""
    try:
        if path.exists() and not (stat.S_ISREG(path.stat().st_mode) and os.access(path, os.W_OK)):
            _refuse(named, "it is no regular file that may be written")
        if not path.parent.is_dir():
            _refuse(named, f"there is no directory {path.parent}")
        with tempfile.TemporaryFile(dir=path.parent) as file:
            file.write(b"\n")
    except OSError as error:
        _refuse(named, f"it cannot be written: {error.strerror}")


def _read(path: Path, named: Path) -> _Content:
    """The file's content, none of one that is empty or not there.

    Raises SpeculationMemoryUnusable.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return _Content.of()
    except OSError as error:
        _refuse(named, f"it cannot be read: {error.strerror}")
    if len(raw) > _MOST_BYTES:
        _refuse(named, "it is larger than such a file can be")
    if not raw:
        return _Content.of()
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):  # ValueError: not UTF-8, not JSON, or an endless number
        _refuse(named, "it is not JSON")
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        _refuse(named, "it holds something else")
    if content.get("version") != _VERSION:
        _refuse(named, "another version of caldrix wrote it")
    try:
        return _converter.structure(content, _Content)
    except BaseValidationError as error:
        _refuse(named, f"it is damaged: {transform_error(error, 'the file')[0]}")


def _refuse(named: Path, reason: str) -> NoReturn:
    raise SpeculationMemoryUnusable(
        f"--speculation-memory {named} cannot be used: {reason}; name another file, or remove it "
        "if it is of no use"
    )


def _write(path: Path, content: _Content) -> None:
    """Raises OSError; the file is then as it was."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with _removed_on_failure(temporary):
        with temporary.open("w", encoding="utf-8") as file:
            if path.exists():
                # It stays as private as its owner has made it.
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(json.dumps(attrs.asdict(content)) + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


@contextlib.contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise


_converter = Converter(forbid_extra_keys=True)


@_converter.register_structure_hook
def _text(value: Any, _: type[str]) -> str:
    # cattrs would turn a number into its digits.
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {value!r}")  # noqa: TRY004  # cattrs' own
    return value


@_converter.register_structure_hook
def _number(value: Any, _: type[float]) -> float:
    # And a text into the number that it spells.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {value!r}")  # noqa: TRY004  # cattrs' own
    return float(value)
