"""Ways to be wrong: each a toy server that breaks a promise, and the clauses that must show it.

Every module here enters its own into the table, by being imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from tests.mutants.faults.registry import FAULTS, breaks

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)

__all__ = ["FAULTS", "breaks"]
