"""The table of faults: broken toy servers, each with the clauses that must show it."""

from __future__ import annotations

from collections.abc import Callable

from caldrix_conformance.endpoints import ENDPOINTS, clause_of
from tests.mutants.toy.server import Toy

FAULTS: dict[type[Toy], frozenset[str]] = {}
"""Each broken server, with exactly the clauses that it breaks in their areas."""


def breaks(*clause_ids: str) -> Callable[[type[Toy]], type[Toy]]:
    """Enter a toy in the table of faults."""

    def enter(toy: type[Toy]) -> type[Toy]:
        FAULTS[toy] = frozenset(clause_ids)
        return toy

    return enter


def on_both(*topics: str) -> list[str]:
    """The clauses of both endpoints on ``topics``."""
    return [clause_of(endpoint, topic) for endpoint in ENDPOINTS for topic in topics]
