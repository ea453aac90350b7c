"""Ways to be wrong of a real server: each a few words, and the clauses that must show it.

Every module here enters its own into the table, by being imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tests.mutants.exchange import Mutation

MUTATIONS: list[Mutation] = []

for _module in iter_modules(__path__, f"{__name__}."):
    MUTATIONS += import_module(_module.name).MUTATIONS
