"""What each module of cases judges, as far as this process has collected it.

A run of a few clauses leaves out the modules that an earlier run has seen to judge none of them.
Pytest imports a module once a process, so what a module judges stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from caldrix_conformance.marks import clauses_of

_JUDGED: dict[Path, frozenset[str]] = {}


def remember(items: Iterable[pytest.Item]) -> None:
    """Note what the modules of ``items`` judge, which must be all that they hold."""
    found: dict[Path, set[str]] = {}
    for item in items:
        found.setdefault(item.path, set()).update(clauses_of(item))
    _JUDGED.update((path, frozenset(clause_ids)) for path, clause_ids in found.items())


def judges_none(path: Path, wanted: Callable[[str], bool]) -> bool:
    """Whether ``path`` is a module that is known to judge none of the clauses ``wanted``."""
    judged = _JUDGED.get(path)
    return judged is not None and not any(map(wanted, judged))
