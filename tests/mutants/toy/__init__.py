"""A small server that keeps the contract, in parts that a fault can replace, and of several kinds.

Every module here enters its kinds of server into `RIGHT`, by being imported.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
