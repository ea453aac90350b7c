"""A git checkout and its revisions: which one to compare with, and what it held."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from attrs import frozen

from caldrix_conformance.errors import SuiteError

_MAIN = "origin/main"


@frozen
class Checkout:
    """A working tree, with whatever in it isn't committed."""

    root: Path

    @classmethod
    def around(cls, directory: Path) -> Checkout:
        """The checkout that ``directory`` is in. Raises SuiteError if there is none, or no git."""
        top = _git(directory, "rev-parse", "--show-toplevel").decode().rstrip("\n")
        if not top:
            raise SuiteError(f"{directory} is in a git repository, but in no checkout of it")
        return cls(Path(top))

    def commit(self, revision: str) -> str:
        """The hash of the commit that ``revision`` names. Raises SuiteError if there is none."""
        found = self._find("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
        if found is None:
            raise SuiteError(f"there is no revision {revision!r} in this checkout")
        return found

    def base(self) -> str | None:
        """The commit that this work began from: where it left origin/main, or else HEAD's parent.

        None where git knows of neither, as in a repository's first commit or a shallow clone.
        """
        head = self._find("rev-parse", "--verify", "HEAD")
        left_main = self._find("merge-base", "HEAD", _MAIN)
        return (
            left_main if left_main not in (None, head) else self._find("rev-parse", "-q", "HEAD^")
        )

    def short(self, commit: str) -> str:
        """The commit's hash as people write it."""
        return self._find("rev-parse", "--short", commit) or commit

    def extract(self, commit: str, folders: Sequence[str], into: Path) -> None:
        """Write what ``folders`` held at ``commit`` below ``into``; those that weren't there, not.

        Raises SuiteError if git can't.
        """
        there = [folder for folder in folders if self._git("ls-tree", commit, "--", folder)]
        if not there:
            return
        archive = self._git("archive", commit, "--", *there)
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(into, filter="data")

    def _find(self, *arguments: str) -> str | None:
        try:
            return self._git(*arguments).decode().strip() or None
        except SuiteError:
            return None

    def _git(self, *arguments: str) -> bytes:
        return _git(self.root, *arguments)


def _git(directory: Path, *arguments: str) -> bytes:
    try:
        return subprocess.run(
            ["git", *arguments], cwd=directory, check=True, capture_output=True
        ).stdout
    except FileNotFoundError as error:
        raise SuiteError("git is needed to compare with a revision, and isn't there") from error
    except subprocess.CalledProcessError as error:
        said = " ".join(error.stderr.decode(errors="replace").split())
        raise SuiteError(f"git in {directory}: {said.removeprefix('fatal: ')}") from error
