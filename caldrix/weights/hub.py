"""Models from the Hugging Face hub, in its standard cache, checked and then used without it.

The hub's library downloads (its cache, its locks, its resumption). What it leaves open is kept
here: a record of each revision that arrived whole and whose large files have the SHA-256 the hub
announced. With a record and its files in place, no request is made.
"""

from __future__ import annotations

import fnmatch
import glob
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import cattrs
import httpx2
from attrs import frozen
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import tqdm

from caldrix.weights.cache import cache_errors, cache_root, is_whole, sha256_of, write_text
from caldrix.weights.directory import CONFIG, ModelDirectory, parse_json_object
from caldrix.weights.errors import CorruptFile, DownloadFailed, ModelNotFound
from caldrix.weights.progress import Progress
from caldrix.weights.safetensors import INDEX, SINGLE_FILE, shard_names

DEFAULT_REVISION = "main"

_WORD = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
NAME = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?:@(?P<revision>[A-Za-z0-9_][A-Za-z0-9_./-]*))?")

# What a model needs beside its weights; all lie at the repository's top.
_SMALL_FILES = (
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "decider_config.json",
)
_SHARDS = "*.safetensors"

# The hub's library says in these ways that the hub does not answer, or was told not to ask it.
_UNREACHABLE = (HfHubHTTPError, httpx2.HTTPError, ConnectionError, LocalEntryNotFoundError)


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
        try:
            return self._fetch(progress)
        except GatedRepoError:
            raise DownloadFailed(
                f"{self.repo} is gated: accept its terms on its page, "
                "log in with `hf auth login`, and try again"
            ) from None
        except (RepositoryNotFoundError, HFValidationError):
            raise ModelNotFound(
                f"the hub has no model {self.repo}, or it is private (`hf auth login`), "
                "and there is no such directory here"
            ) from None
        except RevisionNotFoundError:
            raise ModelNotFound(f"{self.repo} has no revision {self.revision}") from None
        except _UNREACHABLE as error:
            snapshot = None if self.cached() else self._unrecorded()
            if snapshot is None:
                raise self._failed(error) from error
            progress.note(
                f"the hub cannot be reached: using its cached copy of {self.repo}, unchecked"
            )
            return snapshot
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> DownloadFailed:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        return DownloadFailed(f"{self.repo} could not be fetched: {reason}")

    def _fetch(self, progress: Progress) -> Path:
        info = HfApi(library_name="caldrix").model_info(
            self.repo, revision=self.revision, files_metadata=True
        )
        wanted = _wanted(self.repo, info.siblings or [])
        progress.begin(self.repo, sum(file.size or 0 for file in wanted))
        snapshot = Path(
            snapshot_download(
                self.repo,
                # By name rather than commit, so that the library notes what the name stands for.
                revision=self.revision,
                allow_patterns=[glob.escape(file.rfilename) for file in wanted],
                tqdm_class=_bar(progress),
                library_name="caldrix",
            )
        )
        if snapshot.name != info.sha:
            raise DownloadFailed(f"{self.repo} changed while it was fetched; try again")
        for file in wanted:
            _check(snapshot / file.rfilename, file)
        _check_shards(snapshot)
        sizes = {file.rfilename: (snapshot / file.rfilename).stat().st_size for file in wanted}
        record = Record(self.repo, self.revision, snapshot.name, str(snapshot), sizes)
        write_text(self._record_path(), json.dumps(_converter.unstructure(record), indent=1))
        return snapshot

    def _unrecorded(self) -> Path | None:
        """A snapshot that other tools left in the hub's cache, if it can be opened."""
        try:
            snapshot = Path(
                snapshot_download(self.repo, revision=self.revision, local_files_only=True)
            )
            _check_shards(snapshot)
        except (LocalEntryNotFoundError, CorruptFile):
            return None
        return snapshot if (snapshot / CONFIG).is_file() else None

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


def _wanted(repo: str, files: list[RepoSibling]) -> list[RepoSibling]:
    """The files a model needs, out of a repository's. Raises DownloadFailed if weights are not."""
    names = {file.rfilename for file in files}
    if SINGLE_FILE in names:
        weights = {SINGLE_FILE}
    elif INDEX in names:
        weights = {INDEX, *(name for name in fnmatch.filter(names, _SHARDS) if "/" not in name)}
    else:
        hint = ""
        if fnmatch.filter(names, "*.gguf"):
            hint = "; it has GGUF files: download one and name its path"
        raise DownloadFailed(f"{repo} has no safetensors weights{hint}")
    if CONFIG not in names:
        raise DownloadFailed(f"{repo} has no {CONFIG}")
    return [file for file in files if file.rfilename in weights.union(_SMALL_FILES)]


def _check(path: Path, announced: RepoSibling) -> None:
    """Refuse a file that differs from what the hub announced, and remove it from the cache."""
    if announced.lfs is None:
        return
    with cache_errors(path):
        if sha256_of(path) == announced.lfs.sha256:
            return
        # The snapshot's file is a link into the hub's store of blobs.
        path.resolve().unlink()
        path.unlink(missing_ok=True)
    raise DownloadFailed(
        f"{path.name} does not have the sha256 {announced.lfs.sha256} that the hub announced; "
        "it was removed, so that a new try fetches it again"
    )


def _check_shards(snapshot: Path) -> None:
    """Raise CorruptFile unless the weights of a snapshot are all there."""
    directory = ModelDirectory(snapshot)
    if directory.has(SINGLE_FILE):
        return
    for shard in set(shard_names(directory).values()):
        if not directory.has(shard):
            raise CorruptFile(f"{snapshot} lacks the shard {shard} that its index names")


def _bar(progress: Progress) -> type[tqdm]:
    """A bar for the hub's library that draws nothing and passes the written bytes on."""

    class Bar(tqdm):
        # The hub shows received bytes, written bytes and files; the written ones are ours.
        counted: ClassVar[str] = "huggingface_hub.snapshot_download"

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.counts = kwargs.get("name") == self.counted
            kwargs["disable"] = True
            # The library's classes are typed in part.
            super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if self.counts and n:
                progress.advance(int(n))

    return Bar
