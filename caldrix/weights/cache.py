"""The cache directory: where it is, and how files get into it whole or not at all.

A file that is in place under its final name was checked before it got there, so that serving it
needs no second look at its contents. Disks fail, so a pull takes that look (`discard_damaged`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from caldrix.weights.errors import CacheUnusable
from caldrix.weights.progress import Progress

_FULL = (errno.ENOSPC, errno.EDQUOT)
_TRIED_BYTES = 1 << 18
"""More than a kernel takes."""


def cache_root() -> Path:
    """CALDRIX_CACHE, else caldrix in XDG_CACHE_HOME, else ~/.cache/caldrix.

    Raises CacheUnusable for a user without a home directory.
    """
    if chosen := os.environ.get("CALDRIX_CACHE"):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    if Path(base).is_absolute():
        return Path(base) / "caldrix"
    try:
        return Path.home() / ".cache" / "caldrix"
    except RuntimeError as error:
        raise CacheUnusable(
            "there is no home directory for a cache; set CALDRIX_CACHE to a directory"
        ) from error


@contextlib.contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Turn an operating system's error at ``path`` into CacheUnusable."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CacheUnusable(
                f"the disk of {path} is full; make room or set CALDRIX_CACHE"
            ) from error
        raise CacheUnusable(
            f"{error.filename or path} cannot be written: {error.strerror or error}; "
            "set CALDRIX_CACHE to a directory that can"
        ) from error


def takes_files(directory: Path) -> bool:
    """Whether small files, such as kernels, can be put there; it is made if it is missing."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            # A full disk takes a file, and nothing into it.
            file.write(bytes(_TRIED_BYTES))
        return True
    except OSError:
        return False


def prepare(directory: Path) -> Path:
    """Make a directory of the cache. Raises CacheUnusable."""
    with cache_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    return directory


def require_space(directory: Path, size: int) -> None:
    """Raise CacheUnusable when ``size`` more bytes do not fit the directory's disk."""
    with cache_errors(directory):
        free = shutil.disk_usage(directory).free
    if size > free:
        raise CacheUnusable(
            f"{directory} needs {size} more bytes, but its disk has {free} free; "
            "make room or set CALDRIX_CACHE"
        )


@contextlib.contextmanager
def locked(path: Path, progress: Progress) -> Iterator[None]:
    """Hold the lock of a file to come, across processes. Who waits finds what the other fetched."""
    prepare(path.parent)
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    with cache_errors(path.parent):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress.note(f"waiting for another process that fetches {path.name}")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def is_whole(path: Path, size: int) -> bool:
    """Whether a file is there with this size."""
    try:
        return path.is_file() and path.stat().st_size == size
    except OSError:
        return False


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def discard_damaged(path: Path, sha256: str, progress: Progress) -> None:
    """Remove a file of the cache, and what it links to, unless it has this SHA-256.

    Raises CacheUnusable.
    """
    with cache_errors(path):
        if not path.is_file():
            return
        if sha256_of(path) == sha256:
            return
        path.resolve().unlink()
        path.unlink(missing_ok=True)
    progress.note(f"{path} was damaged: its sha256 was not {sha256}; fetching it again")


def require_readable() -> None:
    """Raise CacheUnusable when the cache is there and is no directory that can be read."""
    root = cache_root()
    try:
        os.scandir(root).close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheUnusable(
            f"the cache {root} cannot be read: {error.strerror}; set CALDRIX_CACHE to a directory"
        ) from error


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a file its final name once its bytes are on the disk. Raises CacheUnusable."""
    with cache_errors(path):
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write a small file atomically. Raises CacheUnusable."""
    prepare(path.parent)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with cache_errors(path):
        temporary.write_text(text, encoding="utf-8")
    put_in_place(temporary, path)
