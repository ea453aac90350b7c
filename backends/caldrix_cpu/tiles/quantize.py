"""Quantizes weights to a GGUF block format, so that a lane can hold them in fewer bytes.

The result is a tensor as a file would hold it. Its bytes are those of ggml's reference quantizers
(quantize_row_*_ref in ggml-quants.c), and so of the `gguf` package's. Where a block's scale is too
small for a float32 inverse, and those divide by zero, the quants are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
from attrs import evolve

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.blocks import FORMATS, Float32, UInt8
from caldrix.weights.errors import printable
from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles.layouts import BLOCK
from caldrix_cpu.tiles.runs import matrix_shape, runs

Float16 = npt.NDArray[np.float16]

# The largest float32 below a half. Added before a cut, it rounds halves away from zero and, unlike
# a half, takes nothing below one up to it.
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


def quantized(tensor: Tensor, name: str) -> Tensor:
    """A matrix in any format as a new tensor of the format ``name``, one of `QUANTIZERS`.

    Columns must be a multiple of 32 (ValueError). Raises LaneUnavailable for values that the
    format cannot hold: infinities, NaN, and those whose scale or minimum is past float16.
    """
    rows, columns = matrix_shape(tensor)
    if columns % BLOCK:
        raise ValueError(f"{tensor.name} has {columns} columns, not a multiple of {BLOCK}")
    quantize, block_format = QUANTIZERS[name], FORMATS[name]
    data = np.empty((rows, columns // BLOCK * block_format.block_bytes), np.uint8)
    for run in runs(rows, columns):
        values = tensor.rows_to_float32(run.rows).reshape(-1, BLOCK)
        out = data[run.rows].reshape(len(values), block_format.block_bytes)
        if not quantize(out, values):
            raise LaneUnavailable(
                f"tensor {printable(tensor.name)} holds values that {name} cannot: infinities, "
                "NaN, or numbers past float16; load it with --dtype f32"
            )
    return evolve(tensor, format=block_format, data=data)


def _q8_0(out: UInt8, values: Float32) -> bool:
    """Write ``d`` and 32 signed bytes for each block; False where ``d`` is not finite."""
    d = _columns_first(np.abs(values)).max(axis=0)[:, None] / np.float32(127)
    # Infinities and NaN, which `_halves` reports, have no integer.
    with np.errstate(invalid="ignore"):
        scaled = values * _inverse(d)
        scaled += np.copysign(_BELOW_HALF, scaled)
        out[:, 2:] = scaled.astype(np.int8).view(np.uint8)
    return _halves(out[:, :2], d)


def _q4_1(out: UInt8, values: Float32) -> bool:
    """Write ``d``, ``m`` and 32 nibbles for each block; False where d or m is not finite."""
    columns = _columns_first(values)
    lowest = columns.min(axis=0)[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        d = (columns.max(axis=0)[:, None] - lowest) / np.float32(15)
        # At most 15.5 and a rounding, so that a nibble holds it.
        scaled = (values - lowest) * _inverse(d) + np.float32(0.5)
        quants = scaled.astype(np.uint8)
    # The first half of a block in the low nibbles, the second in the high ones.
    out[:, 4:] = quants[:, : BLOCK // 2] | (quants[:, BLOCK // 2 :] << np.uint8(4))
    return _halves(out[:, :2], d) and _halves(out[:, 2:4], lowest)


def _columns_first(values: Float32) -> Float32:
    """``[32, blocks]``: numpy compares long rows much faster than short ones."""
    return np.ascontiguousarray(values.T)


def _inverse(d: Float32) -> Float32:
    """``1 / d``, and 0 where that is not finite: such a ``d`` is 0 as float16, or is refused."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inverse = np.float32(1) / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _halves(out: UInt8, numbers: Float32) -> bool:
    """Write ``[blocks, 1]`` as float16; False where one of them is not finite."""
    with np.errstate(over="ignore"):
        halves = numbers.astype("<f2")
    out[...] = halves.view(np.uint8)
    return bool(np.isfinite(halves).all())


QUANTIZERS: Mapping[str, Callable[[UInt8, Float32], bool]] = {"Q8_0": _q8_0, "Q4_1": _q4_1}
"""What writes blocks of a format from float32 ``[blocks, 32]``, by the format's name."""
