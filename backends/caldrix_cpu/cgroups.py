"""Where the kernel writes down what this process's control groups allow it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_LONGEST = 64 * 1024
"""Bytes read of one file; memory.stat, the longest, has some two thousand."""


def cgroup_folders(controller: str, root: Path) -> Iterator[Path]:
    """The folders whose files may limit this process, of its own group and of those around it.

    Both versions of control groups, at their usual places below ``root``. A group's path can be
    one that only the host sees, so a folder may be missing.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        match line.split(":", 2):
            case [_, "", path]:
                mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
            case [_, controllers, path] if controller in controllers.split(","):
                mounts = [f"sys/fs/cgroup/{controller}"]
            case _:
                continue
        # A group outside the namespace's own root begins with "..": none of it can be seen.
        inner = PurePosixPath(path.lstrip("/"))
        if ".." in inner.parts:
            inner = PurePosixPath()
        for group in dict.fromkeys([inner, *inner.parents]):
            for mount in mounts:
                yield root / mount / group


def read_text(path: Path) -> str:
    """A small text file of the kernel's; empty where it is missing or cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST).decode(errors="replace")
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return ""


def read_number(text: str) -> int | None:
    """A whole number as the kernel writes it; None for ``max``, -1, and what is malformed."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None
