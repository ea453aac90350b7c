"""How a case says which clauses it judges."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from caldrix_conformance.capabilities import Capability

MARK = "checks"
NEEDS_MARK = "needs"
CAPTURED_MARK = "captured"


def checks(*clause_ids: str) -> pytest.MarkDecorator:
    """Mark a case, or one row of a parametrized case, with the clauses its outcome judges.

    A case that passes keeps them all and one that fails breaks them all, so most judge one.
    """
    if not clause_ids:
        raise ValueError("a case judges at least one clause")
    return pytest.mark.checks.with_args(*clause_ids)


def needs(*capabilities: Capability) -> pytest.MarkDecorator:
    """Mark a case that needs more of the target than the clauses it judges do."""
    return pytest.mark.needs.with_args(*capabilities)


def captured(name: str) -> pytest.MarkDecorator:
    """Mark a case with the golden ``area/case`` that its fixture ``golden`` is."""
    return pytest.mark.captured.with_args(name)


def clauses_of(item: pytest.Item) -> tuple[str, ...]:
    """The ids of the clauses that ``item`` judges, without repetition."""
    ids = (clause_id for mark in item.iter_markers(MARK) for clause_id in mark.args)
    return tuple(dict.fromkeys(ids))


def needs_of(item: pytest.Item) -> frozenset[Capability]:
    """The capabilities that ``item`` itself is marked with."""
    marked: Iterable[Capability] = (
        capability for mark in item.iter_markers(NEEDS_MARK) for capability in mark.args
    )
    return frozenset(marked)


def golden_of(item: pytest.Item) -> str | None:
    """The name of the golden that ``item`` is marked with."""
    mark = item.get_closest_marker(CAPTURED_MARK)
    return None if mark is None else str(mark.args[0])
