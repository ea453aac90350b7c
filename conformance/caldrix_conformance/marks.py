"""How a case says which clauses it judges."""

from __future__ import annotations

import pytest

MARK = "checks"


def checks(*clause_ids: str) -> pytest.MarkDecorator:
    """Mark a case, or one row of a parametrized case, with the clauses its outcome judges.

    A case that passes keeps them all and one that fails breaks them all, so most judge one.
    """
    if not clause_ids:
        raise ValueError("a case judges at least one clause")
    return pytest.mark.checks.with_args(*clause_ids)


def clauses_of(item: pytest.Item) -> tuple[str, ...]:
    """The ids of the clauses that ``item`` judges, without repetition."""
    ids = (clause_id for mark in item.iter_markers(MARK) for clause_id in mark.args)
    return tuple(dict.fromkeys(ids))
