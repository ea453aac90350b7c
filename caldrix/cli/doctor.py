"""`caldrix doctor`: what this machine and this installation can do."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from caldrix.models.lane import available_lanes, find_lane
from caldrix.weights.cache import cache_root
from caldrix.weights.inventory import list_cached


def doctor(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> int:
    """Show lanes, cores, CPU features, memory and the cache.

    Parameters
    ----------
    as_json
        Print JSON instead of tables.
    """
    report = examine()
    if as_json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 0


def examine() -> dict[str, dict[str, object]]:
    """Sections of facts, all JSON values."""
    return {
        "caldrix": {
            "version": version("caldrix"),
            "python": platform.python_version(),
            "executable": sys.executable,
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        },
        **{f"lane {name}": dict(find_lane(name).describe()) for name in available_lanes()},
        "memory": _memory(),
        "cache": _cache(),
    }


def _memory() -> dict[str, object]:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return {"total": "not known on this system"}
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "total": _gibibytes(page * os.sysconf("SC_PHYS_PAGES")),
        "free": _gibibytes(page * os.sysconf("SC_AVPHYS_PAGES")),
    }


def _cache() -> dict[str, object]:
    root = cache_root()
    return {
        "directory": str(root),
        "writable": _writable(root),
        "free": _gibibytes(shutil.disk_usage(_existing(root)).free),
        "models": [model.name for model in list_cached()],
    }


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _writable(path: Path) -> bool:
    existing = _existing(path)
    return existing.is_dir() and os.access(existing, os.W_OK)


def _gibibytes(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _print(report: Mapping[str, Mapping[str, object]]) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for title, facts in report.items():
        table.add_row(Text(title, style="bold"))
        for name, value in facts.items():
            shown = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            table.add_row(f"  {name}", Text(shown or "none"))
    Console(markup=False, highlight=False).print(table)
