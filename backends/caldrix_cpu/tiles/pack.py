"""Lays a file's weights out in tiles, as `caldrix_cpu.tiles.layouts` describes.

Quantized formats keep every number of the file: only places change. So a value decoded from a tile
equals, bit for bit, the one decoded from the file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from caldrix.weights import blocks
from caldrix.weights.blocks import Levels, UInt8
from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles import bf12
from caldrix_cpu.tiles.floats import Bits, FloatName, float_bits
from caldrix_cpu.tiles.layouts import (
    BLOCK,
    PLANES,
    SUPERBLOCK,
    TILE_ROWS,
    FloatLayout,
    Layout,
    QuantLayout,
    padded,
    tiles_of,
)
from caldrix_cpu.tiles.runs import matrix_shape, runs, whole_tiles

_FLOAT_NAMES: dict[str, FloatName] = {"F32": "F32", "F16": "F16", "BF16": "BF16"}


def packed_bytes(layout: Layout, rows: int, columns: int) -> int:
    """Bytes of a matrix laid out so; of a compressed layout, the most it can take."""
    if isinstance(layout, FloatLayout) and layout.compressed:
        return bf12.most_bytes(rows, columns)
    return tiles_of(rows) * layout.tile_bytes(columns)


def pack_into(out: UInt8, tensor: Tensor, layout: Layout, first: int = 0, step: int = 1) -> None:
    """Lay a whole matrix out: its tile ``t`` becomes tile ``first + step * t`` of ``out``.

    ``out`` is one-dimensional, begins on a cache line and holds whole tiles; matrices that share
    it have the same columns. A quantized layout takes tensors of the format it is named after; a
    float layout takes any, rounding where it must (`float_bits`). Compressed layouts are not laid
    out in place: see `bf12.compress`.

    Raises ValueError where tensor, layout and ``out`` do not go together, and LaneUnavailable for
    a value that the float layout cannot hold.
    """
    rows, columns = matrix_shape(tensor)
    _require_match(tensor, layout, columns)
    tiles = _places(out, layout.tile_bytes(columns), tiles_of(rows), first, step)
    for run in runs(rows, columns):
        if isinstance(layout, QuantLayout):
            data = whole_tiles(tensor.data[run.rows], tensor.data.shape[1])
            _pack_levels(tiles[run.tiles], blocks.levels(tensor.format, data), layout, columns)
        else:
            bits = float_bits(tensor, _FLOAT_NAMES[layout.name], run.rows)
            _pack_floats(tiles[run.tiles], whole_tiles(bits, padded(columns, 4)), layout)


def _require_match(tensor: Tensor, layout: Layout, columns: int) -> None:
    if isinstance(layout, QuantLayout):
        if tensor.format.name != layout.name or not layout.takes(columns):
            raise ValueError(
                f"{tensor.name} ({tensor.format.name}, {columns} columns) does not fit {layout}"
            )
    elif layout.compressed:
        raise ValueError(f"{layout.name} has no fixed places; bf12.compress makes it")


def _places(out: UInt8, tile_bytes: int, count: int, first: int, step: int) -> UInt8:
    """The matrix's own tiles within ``out``: ``[count, tile_bytes]``."""
    if out.ndim != 1 or out.size % tile_bytes:
        raise ValueError(f"{out.shape} bytes are not whole tiles of {tile_bytes} bytes")
    places, last = out.size // tile_bytes, first + step * (count - 1)
    if first < 0 or step < 1 or last >= places:
        raise ValueError(f"{count} tiles from {first} by {step} are not within {places}")
    return out.reshape(-1, tile_bytes)[first : last + 1 : step]


def _pack_levels(tiles: UInt8, levels: Levels, layout: QuantLayout, columns: int) -> None:
    count = len(tiles)
    scales_at, quants_at = layout.scales_at(columns), layout.quants_at(columns)
    tops = [part for part in (levels.d, levels.m) if part is not None]
    if layout.two_level:
        subs = [part for part in (levels.sc, levels.mn) if part is not None]
        _interleave(tiles[:, :scales_at], tops, columns // SUPERBLOCK)
        _interleave(tiles[:, scales_at:quants_at], subs, columns // layout.group)
    else:
        _interleave(tiles[:, scales_at:quants_at], tops, columns // BLOCK)
    by_row = levels.quants.reshape(count, TILE_ROWS, columns // BLOCK, BLOCK)
    _pack_quants(tiles[:, quants_at:], by_row.view(np.uint32).transpose(0, 2, 3, 1), layout)


def _interleave(region: UInt8, parts: list[npt.NDArray[Any]], each_row: int) -> None:
    """Write ``[each_row][len(parts)][16 rows]`` in each tile's region, and zeros to its end.

    A part has ``each_row`` numbers for each row, in any shape.
    """
    count, used = len(region), each_row * len(parts) * TILE_ROWS * parts[0].itemsize
    places = region[:, :used].view(parts[0].dtype).reshape(count, each_row, len(parts), TILE_ROWS)
    for at, part in enumerate(parts):
        places[:, :, at] = part.reshape(count, TILE_ROWS, each_row).transpose(0, 2, 1)
    region[:, used:] = 0


def _pack_quants(region: UInt8, quants: npt.NDArray[np.uint32], layout: QuantLayout) -> None:
    """Write the planes of ``quants``, ``[tiles, blocks, 8 runs, 16 rows]`` of four columns each."""
    count, blocks_each = quants.shape[:2]
    used = blocks_each * layout.block_quant_bytes
    vectors = region[:, :used].view(np.uint32).reshape(count, blocks_each, layout.bits, TILE_ROWS)
    if layout.bits == 8:
        vectors[...] = quants
    else:
        quants = np.ascontiguousarray(quants)
        below = 0
        for width in PLANES[layout.bits]:
            plane = (quants >> np.uint32(below)) & np.uint32(0x01010101 * ((1 << width) - 1))
            vectors[:, :, below : below + width] = _folded(plane, width)
            below += width
    region[:, used:] = 0


def _folded(plane: npt.NDArray[np.uint32], width: int) -> npt.NDArray[np.uint32]:
    """The eight runs of a plane put side by side in the bits of ``width`` vectors."""
    folded = plane[:, :, :width].copy()
    for fold in range(1, 8 // width):
        folded |= plane[:, :, width * fold : width * (fold + 1)] << np.uint32(width * fold)
    return folded


def _pack_floats(tiles: UInt8, bits: Bits, layout: FloatLayout) -> None:
    """Write the columns of ``bits``, ``[tiles, 16 rows, columns]``, one after another."""
    # A pair of bfloat16 moves as one number of four bytes.
    units = bits.view(np.uint32) if layout.name == "BF16" else bits
    count, _, each_row = units.shape
    tiles.view(units.dtype).reshape(count, each_row, TILE_ROWS)[...] = units.transpose(0, 2, 1)
