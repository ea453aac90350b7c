"""Models from the Hugging Face hub, in its standard cache, used without it once they are there.

The hub's library downloads them (see `hub_download`). What it leaves open is kept here: a record of
each revision that arrived whole and was checked. With a record and its files in place, no request
is made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import cattrs
from attrs import frozen

from caldrix.weights.cache import cache_root, is_whole, write_text
from caldrix.weights.directory import parse_json_object
from caldrix.weights.errors import CorruptFile, DownloadFailed, ModelNotFound
from caldrix.weights.progress import Progress

DEFAULT_REVISION = "main"

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
NAME = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9_./-]*))?")


@frozen
class Record:
    """A revision that is wholly in the hub's cache: its snapshot and its files' sizes."""

    repo: str
    revision: str
    commit: str
    snapshot: str
    files: dict[str, int]

    def is_whole(self) -> bool:
        """Whether every file is still in place."""
        return all(is_whole(Path(self.snapshot, name), size) for name, size in self.files.items())


_converter = cattrs.Converter(forbid_extra_keys=True)


@frozen
class HubSource:
    """A repository at a revision."""

    repo: str
    revision: str = DEFAULT_REVISION
    kind: str = "hub"

    @classmethod
    def parse(cls, name: str) -> HubSource:
        """From ``owner/name[@revision]``, which `NAME` matches."""
        match = NAME.fullmatch(name)
        if match is None:
            raise ModelNotFound(f"{name} is not a hub name; they look like Qwen/Qwen3-0.6B")
        return cls(match["repo"], match["revision"] or DEFAULT_REVISION)

    @property
    def served_name(self) -> str:
        """The repository's id."""
        return self.repo

    def cached(self) -> Path | None:
        """The snapshot, if an earlier `fetch` brought all of it. Makes no request."""
        record = _read_record(self._record_path())
        return Path(record.snapshot) if record is not None and record.is_whole() else None

    def fetch(self, progress: Progress) -> Path:
        """The revision's snapshot as it is on the hub now, fetching what the cache lacks.

        Raises ModelNotFound, DownloadFailed, CacheUnusable.
        """
        # The hub's library takes longer to import than a cached model takes to open.
        from caldrix.weights import hub_download

        try:
            record = hub_download.fetch(self.repo, self.revision, progress)
        except hub_download.HubUnreachable as error:
            snapshot = None if self.cached() else hub_download.left_by_others(self)
            if snapshot is None:
                raise DownloadFailed(str(error)) from error
            progress.note(
                f"the hub cannot be reached: using its cached copy of {self.repo}, unchecked"
            )
            return snapshot
        write_text(self._record_path(), json.dumps(_converter.unstructure(record), indent=1))
        return Path(record.snapshot)

    def _record_path(self) -> Path:
        return _records() / f"{quote(f'{self.repo}@{self.revision}', safe='@')}.json"


def recorded() -> Iterator[Record]:
    """Every revision that is wholly there."""
    for path in sorted(_records().glob("*.json")):
        record = _read_record(path)
        if record is not None and record.is_whole():
            yield record


def _records() -> Path:
    return cache_root() / "hub"


def _read_record(path: Path) -> Record | None:
    """A record; None for one that is missing or not ours, which `fetch` writes anew."""
    if not path.is_file():
        return None
    try:
        return _converter.structure(parse_json_object(path.read_text(), str(path)), Record)
    except (CorruptFile, cattrs.BaseValidationError, UnicodeDecodeError):
        return None
