"""Records of the hub's revisions that are on this machine, whole and checked.

A revision's record is written once all of its files arrived; it says what they were.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import cattrs
from attrs import frozen

from caldrix.weights.cache import cache_root, is_whole, write_text
from caldrix.weights.directory import parse_json_object
from caldrix.weights.errors import CorruptFile


@frozen
class RecordedFile:
    """A file as it arrived. ``size`` is in bytes, ``sha256`` in hexadecimal."""

    size: int
    sha256: str


@frozen
class Record:
    """A revision that is wholly in the hub's cache: its snapshot directory and the files in it."""

    repo: str
    revision: str
    snapshot: str
    files: dict[str, RecordedFile]

    def is_whole(self) -> bool:
        """Whether every file is still in place."""
        return all(
            is_whole(Path(self.snapshot, name), file.size) for name, file in self.files.items()
        )


_converter = cattrs.Converter(forbid_extra_keys=True)


def read_record(repo: str, revision: str) -> Record | None:
    """A revision's record; None for one that is missing or not ours, to be written anew."""
    return _read(_path(repo, revision))


def write_record(record: Record) -> None:
    """Keep a record. Raises CacheUnusable."""
    text = json.dumps(_converter.unstructure(record), indent=1)
    write_text(_path(record.repo, record.revision), text)


def recorded() -> Iterator[Record]:
    """Every revision that is wholly there."""
    for path in sorted(_directory().glob("*.json")):
        record = _read(path)
        if record is not None and record.is_whole():
            yield record


def _directory() -> Path:
    return cache_root() / "hub"


def _path(repo: str, revision: str) -> Path:
    return _directory() / f"{quote(f'{repo}@{revision}', safe='@')}.json"


def _read(path: Path) -> Record | None:
    if not path.is_file():
        return None
    try:
        return _converter.structure(parse_json_object(path.read_text(), str(path)), Record)
    except (CorruptFile, cattrs.BaseValidationError, UnicodeDecodeError):
        return None
