"""Rows of parametrized cases. Imported by cases alone: its marks exist only in the suite's runs."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import ENDPOINTS, clause_of
from caldrix_conformance.marks import captured, checks, needs


def row(clause_id: str, *values: object, golden: str | None = None) -> pytest.ParameterSet:
    """One row of a parametrized case, judging one clause of its own, or one golden of it."""
    if golden is None:
        return pytest.param(*values, marks=checks(clause_id), id=clause_id)
    return pytest.param(*values, marks=[checks(clause_id), captured(golden)], id=golden)


both_endpoints = pytest.mark.parametrize(
    "endpoint",
    [
        pytest.param(endpoint, marks=needs(endpoint.capability), id=endpoint.name)
        for endpoint in ENDPOINTS
    ],
)
"""A case that is run on each generating endpoint that the target has."""


def each(topic: str, *values: object) -> list[pytest.ParameterSet]:
    """A row for each endpoint, which comes first in it, judging the endpoint's own clause."""
    return [row(clause_of(endpoint, topic), endpoint, *values) for endpoint in ENDPOINTS]


def on_each(topic: str) -> pytest.MarkDecorator:
    """A case that is run on each endpoint and judges that endpoint's own clause on ``topic``."""
    return pytest.mark.parametrize("endpoint", each(topic))
