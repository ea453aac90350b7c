"""The address at which `caldrix serve` says that it is ready."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ADDRESS = re.compile(r"^\s*address\s+(http://\S+)/v1$")


def announced(lines: Iterable[str]) -> str | None:
    """The address in what the command prints, read up to there; None if it ends without one."""
    return next((match[1] for match in map(_ADDRESS.match, lines) if match), None)
