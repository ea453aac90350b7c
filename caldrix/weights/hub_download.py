"""Downloads from the Hugging Face hub, by its own library: its cache, its locks, its resumption.

Large files are checked against the SHA-256 that the hub announces.
"""

from __future__ import annotations

import fnmatch
import glob
from pathlib import Path
from typing import Any, ClassVar

import httpx2
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

from caldrix.errors import CaldrixError
from caldrix.weights.cache import cache_errors, sha256_of
from caldrix.weights.directory import CONFIG, ModelDirectory
from caldrix.weights.errors import CorruptFile, DownloadFailed, ModelNotFound, printable
from caldrix.weights.hub_record import Record, RecordedFile
from caldrix.weights.progress import Progress
from caldrix.weights.safetensors import INDEX, SINGLE_FILE, shard_names

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


class HubUnreachable(CaldrixError):
    """The hub does not answer, or its library was told not to ask it."""


def fetch(repo: str, revision: str, progress: Progress) -> Record:
    """The revision as it is on the hub now, in the hub's cache, checked.

    Raises HubUnreachable, ModelNotFound, DownloadFailed, CacheUnusable.
    """
    try:
        return _fetch(repo, revision, progress)
    except GatedRepoError:
        raise DownloadFailed(
            f"{repo} is gated: accept its terms on its page, "
            "log in with `hf auth login`, and try again"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelNotFound(
            f"the hub has no model {repo}, or it is private (`hf auth login`), "
            "and there is no such directory here"
        ) from None
    except RevisionNotFoundError:
        raise ModelNotFound(f"{repo} has no revision {revision}") from None
    except _UNREACHABLE as error:
        raise HubUnreachable(_failure(repo, error)) from error
    except OSError as error:
        raise DownloadFailed(_failure(repo, error)) from error


def left_by_others(repo: str, revision: str) -> Path | None:
    """A snapshot that other tools left in the hub's cache, if it can be opened."""
    try:
        snapshot = Path(snapshot_download(repo, revision=revision, local_files_only=True))
        _check_shards(snapshot)
    except (LocalEntryNotFoundError, CorruptFile):
        return None
    return snapshot if (snapshot / CONFIG).is_file() else None


def _failure(repo: str, error: Exception) -> str:
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return f"{repo} could not be fetched: {printable(reason)}"


def _fetch(repo: str, revision: str, progress: Progress) -> Record:
    info = HfApi(library_name="caldrix").model_info(repo, revision=revision, files_metadata=True)
    wanted = _wanted(repo, info.siblings or [])
    progress.begin(repo, sum(file.size or 0 for file in wanted))
    snapshot = Path(
        snapshot_download(
            repo,
            # By name rather than commit, so that the library notes what the name stands for.
            revision=revision,
            allow_patterns=[glob.escape(file.rfilename) for file in wanted],
            tqdm_class=_bar(progress),
            library_name="caldrix",
        )
    )
    if snapshot.name != info.sha:
        raise DownloadFailed(f"{repo} changed while it was fetched; try again")
    files = {file.rfilename: _check(snapshot / file.rfilename, file) for file in wanted}
    _check_shards(snapshot)
    return Record(repo, revision, str(snapshot), files)


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


def _check(path: Path, announced: RepoSibling) -> RecordedFile:
    """Refuse a file that differs from what the hub announced, and remove it from the cache."""
    with cache_errors(path):
        arrived = RecordedFile(path.stat().st_size, sha256_of(path))
        if announced.lfs is None or arrived.sha256 == announced.lfs.sha256:
            return arrived
        # The snapshot's file is a link into the hub's store of blobs.
        path.resolve().unlink()
        path.unlink(missing_ok=True)
    raise DownloadFailed(
        f"{printable(path.name)} does not have the sha256 {announced.lfs.sha256} "
        "that the hub announced; it was removed, so that a new try fetches it again"
    )


def _check_shards(snapshot: Path) -> None:
    """Raise CorruptFile unless the weights of a snapshot are all there."""
    directory = ModelDirectory(snapshot)
    if directory.has(SINGLE_FILE):
        return
    for shard in set(shard_names(directory).values()):
        if not directory.has(shard):
            raise CorruptFile(f"{snapshot} lacks the shard {printable(shard)} that its index names")


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
