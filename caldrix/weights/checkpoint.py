"""Opening a checkpoint, whatever its format."""

from __future__ import annotations

from pathlib import Path

from caldrix.weights.cache import cache_root
from caldrix.weights.directory import CONFIG, ModelDirectory
from caldrix.weights.errors import CorruptFile, ModelNotFound, printable
from caldrix.weights.gguf import GgufCheckpoint, open_gguf
from caldrix.weights.safetensors import (
    INDEX,
    SINGLE_FILE,
    SafetensorsCheckpoint,
    open_safetensors,
)

AnyCheckpoint = GgufCheckpoint | SafetensorsCheckpoint


def open_checkpoint(path: Path) -> AnyCheckpoint:
    """Open a GGUF file, a directory of safetensors weights, or a directory with one GGUF file.

    A file needs no suffix: its first bytes tell. Raises ModelNotFound where there is nothing, and
    CorruptFile for what cannot be read or could be meant in two ways; of a file in the cache it
    says how to have it fetched again.
    """
    try:
        return _open(path)
    except CorruptFile as error:
        if not path.absolute().is_relative_to(cache_root()):
            raise
        raise CorruptFile(
            f"{error}; it is in the cache: `caldrix pull` with the model's name "
            "(`caldrix models list` shows it) checks the file and fetches it again"
        ) from error


def _open(path: Path) -> AnyCheckpoint:
    if path.is_dir():
        return _open_directory(ModelDirectory(path))
    if not path.exists():
        raise ModelNotFound(f"{path} does not exist")
    return open_gguf(path)


def _open_directory(directory: ModelDirectory) -> AnyCheckpoint:
    path = directory.path
    if directory.has(SINGLE_FILE) or directory.has(INDEX):
        return open_safetensors(path)
    gguf_files = sorted(file for file in path.iterdir() if file.suffix == ".gguf")
    if len(gguf_files) == 1:
        return open_gguf(gguf_files[0], directory)
    if gguf_files:
        names = printable(", ".join(file.name for file in gguf_files))
        raise CorruptFile(f"{path} has several GGUF files ({names}); name the one to open")
    raise CorruptFile(
        f"{path} has no weights: no {SINGLE_FILE} or {INDEX} beside a {CONFIG}, and no .gguf file"
    )
