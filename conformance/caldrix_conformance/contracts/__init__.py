"""What belongs to one contract alone, a folder each; its cases lie in cases/, by the same name."""

from __future__ import annotations

from collections.abc import Callable, Set
from importlib import import_module
from typing import cast

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.target import Target

Discover = Callable[[Target, Set[Capability]], frozenset[Capability]]
"""Finds the capabilities of a target, less those that a person says it is without."""


def discovery_of(contract: str) -> Discover:
    """How the targets of a contract are looked at: ``discover`` in its ``discovery`` module."""
    module = import_module(f"{__name__}.{contract}.discovery")
    return cast(Discover, module.discover)
