"""Models from the Hugging Face hub, in its standard cache, used without it once they are there.

The hub's library downloads them (see `hub_download`). With a record of a revision (see
`hub_record`) and its files in place, no request is made.
"""

from __future__ import annotations

import re
from pathlib import Path

from attrs import frozen

from caldrix.weights.cache import discard_damaged
from caldrix.weights.errors import WITHOUT_NETWORK, DownloadFailed, ModelNotFound, printable
from caldrix.weights.hub_record import read_record, write_record
from caldrix.weights.progress import Progress

DEFAULT_REVISION = "main"

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
NAME = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9_./-]*))?")


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
            raise ModelNotFound(
                f"{printable(name)} is not a hub name; they look like Qwen/Qwen3-0.6B"
            )
        return cls(match["repo"], match["revision"] or DEFAULT_REVISION)

    @property
    def served_name(self) -> str:
        """The repository's id."""
        return self.repo

    def cached(self) -> Path | None:
        """The snapshot, if an earlier `fetch` brought all of it. Makes no request."""
        record = read_record(self.repo, self.revision)
        return Path(record.snapshot) if record is not None and record.is_whole() else None

    def discard_damaged(self, progress: Progress) -> None:
        """Remove the snapshot's files that are not as they arrived. Raises CacheUnusable."""
        record = read_record(self.repo, self.revision)
        if record is not None:
            progress.note(f"checking {self.repo}")
            for name, file in record.files.items():
                discard_damaged(Path(record.snapshot, name), file.sha256, progress)

    def fetch(self, progress: Progress) -> Path:
        """The revision's snapshot as it is on the hub now, fetching what the cache lacks.

        Raises ModelNotFound, DownloadFailed, CacheUnusable.
        """
        # The hub's library takes longer to import than a cached model takes to open.
        from caldrix.weights import hub_download

        try:
            record = hub_download.fetch(self.repo, self.revision, progress)
        except hub_download.HubUnreachable as error:
            snapshot = (
                None if self.cached() else hub_download.left_by_others(self.repo, self.revision)
            )
            if snapshot is None:
                raise DownloadFailed(f"{error}; {WITHOUT_NETWORK}") from error
            progress.note(
                f"the hub cannot be reached: using its cached copy of {self.repo}, unchecked"
            )
            return snapshot
        write_record(record)
        return Path(record.snapshot)
