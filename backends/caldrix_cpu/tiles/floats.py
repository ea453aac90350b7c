"""Weights as the float formats of the tiles hold them: their bits, rounded where they must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.errors import printable
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu.tiles.runs import matrix_shape, runs

FloatName = Literal["BF16", "F16", "F32"]
UInt16 = npt.NDArray[np.uint16]
Bits = npt.NDArray[np.unsignedinteger[Any]]

_INFINITY = 0x7F800000
"""A float32 infinity's bits; a NaN's are above."""


def bfloat16_bits(values: Float32) -> UInt16:
    """Float32 rounded to the nearest bfloat16, ties to even.

    What is past the largest becomes infinity, and a NaN stays one: made quiet, its payload cut.
    """
    bits = values.view(np.uint32)
    # The addition carries into bit 16 from above half, or from half where bit 16 is set.
    rounded = ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    if (bits & np.uint32(0x7FFFFFFF)).max(initial=0) > _INFINITY:
        quiet = (bits >> 16).astype(np.uint16) | np.uint16(0x40)
        rounded = np.where(np.isnan(values), quiet, rounded)
    return rounded


def float16_bits(values: Float32) -> UInt16:
    """Float32 rounded to the nearest float16, ties to even, and beyond the largest to infinity."""
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16)


# How float32 is stored, and the bits of each format's infinity.
_NARROW: dict[FloatName, tuple[Callable[[Float32], UInt16], int]] = {
    "BF16": (bfloat16_bits, 0x7F80),
    "F16": (float16_bits, 0x7C00),
}
_STORED_AS = {"F32": "<u4", "F16": "<u2", "BF16": "<u2"}


def float_bits(tensor: Tensor, name: FloatName, rows: slice) -> Bits:
    """The chosen rows of a tensor as values of a float format: their bits ``[rows, columns]``.

    A tensor of that very format gives its own bits; any other format is decoded first. Raises
    LaneUnavailable for a finite value that is infinite once rounded.
    """
    if tensor.format.name == name:
        return np.ascontiguousarray(tensor.data[rows]).view(_STORED_AS[name])
    values = tensor.rows_to_float32(rows)
    if name == "F32":
        return values.view(np.uint32)
    narrow, infinity = _NARROW[name]
    bits = narrow(values)
    infinite = (bits & np.uint16(0x7FFF)) == infinity
    if infinite.any() and np.isfinite(values[infinite]).any():
        largest = np.abs(values[np.isfinite(values)]).max()
        raise LaneUnavailable(
            f"tensor {printable(tensor.name)} holds {largest:.4g}, which is past the largest "
            f"{name} number; load it with --dtype f32"
        )
    return bits


def narrowest_exact(tensor: Tensor) -> FloatName:
    """The narrowest float format that holds every value of a matrix bit for bit.

    BF16 comes before F16, as it can be compressed and processors multiply it.
    """
    candidates: list[FloatName] = ["BF16", "F16"]
    for run in runs(*matrix_shape(tensor)):
        values = tensor.rows_to_float32(run.rows)
        candidates = [name for name in candidates if _EXACT[name](values)]
        if not candidates:
            return "F32"
    return candidates[0]


def _is_bfloat16(values: Float32) -> bool:
    return not (values.view(np.uint32) & np.uint32(0xFFFF)).any()


def _is_float16(values: Float32) -> bool:
    # A signalling NaN comes back quiet, and so counts as changed.
    with np.errstate(over="ignore", invalid="ignore"):
        back = values.astype(np.float16).astype(np.float32)
    return bool((back.view(np.uint32) == values.view(np.uint32)).all())


_EXACT: dict[FloatName, Callable[[Float32], bool]] = {
    "BF16": _is_bfloat16,
    "F16": _is_float16,
}
