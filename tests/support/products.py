"""Products of packed matrices by one compiled kernel, called by its address.

Activations are laid out here from what `caldrix_cpu.codegen.activations` states, not by its code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from caldrix.weights.tensor import Tensor
from caldrix_cpu import aligned
from caldrix_cpu.arena import address
from caldrix_cpu.tiles import bf12
from caldrix_cpu.tiles.floats import bfloat16_bits
from caldrix_cpu.tiles.layouts import LAYOUTS, QuantLayout, padded, tiles_of
from caldrix_cpu.tiles.pack import pack_into, packed_bytes
from caldrix_cpu.variants import Variant
from tests.support.compiled import Array, kernel

_SENTINEL = np.float32(12345.0)


def groups(tokens: int, most: int) -> Iterator[tuple[int, int, int]]:
    """First token, count and filled-up size of each group."""
    first = 0
    while first < tokens:
        count = min(tokens - first, most)
        yield first, count, next(size for size in (1, 2, 4, most) if size >= count)
        first += count


@frozen(eq=False)
class Activations:
    """Numbers as a kernel reads them, and in float64 for the reference."""

    exact: npt.NDArray[np.float64]
    """``[tokens, columns]``."""
    values: npt.NDArray[Any]
    """``[tokens, columns]`` as stored; ``unit`` of them stay together."""
    unit: int = 1
    scales: Array | None = None
    """``[tokens, blocks]``."""
    sums: Array | None = None
    """``[tokens, sums]``."""

    def packed(self, tokens: int, most: int) -> tuple[npt.NDArray[np.uint8], ...]:
        """The first tokens in groups; what fills a group up is all ones: NaN, or -1."""
        return tuple(
            _interleaved(part[:tokens], unit, most)
            for part, unit in ((self.values, self.unit), (self.scales, 1), (self.sums, 1))
            if part is not None
        )

    def only(self, token: int) -> Activations:
        """One token's."""
        place = slice(token, token + 1)
        return evolve(
            self,
            exact=self.exact[place],
            values=self.values[place],
            scales=None if self.scales is None else self.scales[place],
            sums=None if self.sums is None else self.sums[place],
        )


def _interleaved(values: npt.NDArray[Any], unit: int, most: int) -> npt.NDArray[np.uint8]:
    tokens = len(values)
    row_bytes = values[0].nbytes
    out = np.full((tokens + most) * row_bytes, 0xFF, np.uint8)
    for first, count, size in groups(tokens, most):
        group = out[first * row_bytes : (first + size) * row_bytes]
        places = group.view(values.dtype).reshape(-1, size, unit)
        places[:, :count] = values[first : first + count].reshape(count, -1, unit).swapaxes(0, 1)
    return out


def quantized(values: Array, halves: bool) -> Activations:
    """Int8 with a scale for each 32 columns: a 127th of the largest magnitude."""
    blocks = values.reshape(len(values), -1, 32)
    largest = np.abs(blocks).max(axis=2)
    scales = largest * np.float32(1 / 127)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    quants = np.rint(blocks * inverse[..., None]).astype(np.int8)
    runs = quants.reshape(len(values), -1, 16 if halves else 32)
    each = np.repeat(scales, 2, axis=1) if halves else scales
    return Activations(
        exact=(quants * scales[..., None].astype(np.float64)).reshape(values.shape),
        values=quants.reshape(values.shape),
        unit=4,
        scales=scales,
        sums=each * runs.sum(axis=2, dtype=np.int32).astype(np.float32),
    )


def in_float32(values: Array) -> Activations:
    return Activations(values.astype(np.float64), values)


def in_bfloat16(values: Array) -> Activations:
    bits = bfloat16_bits(values)
    rounded = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return Activations(rounded.astype(np.float64), bits, unit=2)


@frozen(eq=False)
class Matrix:
    """A packed matrix."""

    tiles: npt.NDArray[np.uint8]
    tile_bytes: int
    columns: int
    count: int
    """Tiles."""


def packed(tensor: Tensor, name: str) -> Matrix:
    columns, count = tensor.shape[1], tiles_of(len(tensor.data))
    if name == "BF12":
        return Matrix(bf12.compress([bf12.Part(tensor)]), 0, columns, count)
    layout = LAYOUTS[name]
    tiles = aligned.empty((packed_bytes(layout, len(tensor.data), columns) // 4,)).view(np.uint8)
    pack_into(tiles, tensor, layout)
    stored = columns if isinstance(layout, QuantLayout) else padded(columns, 4)
    return Matrix(tiles, layout.tile_bytes(columns), stored, count)


def product(
    variant: Variant, unit: str, matrix: Matrix, x: Activations, tokens: int,
    first: int = 0, last: int | None = None,
) -> Array:  # fmt: skip
    """The product of the first tokens with tiles ``first`` to ``last``: ``[tokens, rows]``."""
    last = matrix.count if last is None else last
    parts = x.packed(tokens, variant.group)
    places = [address(part) for part in parts] + [0] * (3 - len(parts))
    width = 16 * (last - first)
    out = np.full((tokens + variant.group, width + 16), _SENTINEL, np.float32)
    call = kernel(variant, unit).callable(11)
    call(
        address(matrix.tiles), matrix.tile_bytes, matrix.columns, first, last, tokens,
        *places, address(out), out.strides[0],
    )  # fmt: skip
    filled = sum(size for *_, size in groups(tokens, variant.group))
    assert (out[:, width:] == _SENTINEL).all()
    assert (out[filled:] == _SENTINEL).all()
    return out[:tokens, :width].copy()
