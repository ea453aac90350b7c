"""Comparing two JSON values, exactly but for floats that carry a stated tolerance."""

from __future__ import annotations

import json
import math
from typing import Any

from attrs import Attribute, field, frozen


@frozen
class Tolerance:
    """By how much a float may differ, and why it may at all."""

    absolute: float = field()
    reason: str = field()

    @absolute.validator
    def _positive(self, _: Attribute[float], value: float) -> None:
        if not 0 < value < math.inf:
            raise ValueError(f"a tolerance is a positive number, not {value!r}")

    @reason.validator
    def _said(self, _: Attribute[str], value: str) -> None:
        if not value.strip():
            raise ValueError("a tolerance says why it is needed")


def first_difference(
    stored: Any, seen: Any, path: str = "", *, tolerance: Tolerance | None = None
) -> str | None:
    """Where two JSON values first differ, as a sentence; None where they are equal.

    Without ``tolerance`` numbers are equal if they are of one type and value. With it a stored
    float takes every number that near, be it written with a fraction or without.
    """
    if isinstance(stored, dict) and isinstance(seen, dict):
        for name in dict.fromkeys((*stored, *seen)):
            here = f"{path}.{name}".lstrip(".")
            if name not in seen:
                return f"{here} is missing"
            if name not in stored:
                return f"{here} is not in the golden: {json.dumps(seen[name])}"
            difference = first_difference(stored[name], seen[name], here, tolerance=tolerance)
            if difference is not None:
                return difference
        return None
    if isinstance(stored, list) and isinstance(seen, list):
        if len(stored) != len(seen):
            return f"{path} has {len(seen)} items, in the golden {len(stored)}"
        for index, (one, other) in enumerate(zip(stored, seen, strict=True)):
            difference = first_difference(one, other, f"{path}[{index}]", tolerance=tolerance)
            if difference is not None:
                return difference
        return None
    if stored == seen and type(stored) is type(seen):
        return None
    said = f"{path} is {json.dumps(seen)}, in the golden {json.dumps(stored)}"
    if tolerance is None or type(stored) is not float or type(seen) not in (int, float):
        return said
    if abs(seen - stored) <= tolerance.absolute:
        return None
    return f"{said}, further off than {tolerance.absolute:g}"
