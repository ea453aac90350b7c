"""One row of a matrix of tiles as float32: an embedding, where the output weights are the same.

The values equal, bit for bit, those that `caldrix.weights.blocks` decodes from the file: one
product and one sum, each rounded.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    float_of_bits,
    load_bits,
    load_byte,
    load_half_float,
    load_signed_byte,
    store_float,
)
from caldrix_cpu.tiles.layouts import (
    BLOCK,
    LINE,
    PLANES,
    SUPERBLOCK,
    TILE_ROWS,
    FloatLayout,
    Layout,
    QuantLayout,
)

LOOKUP_ARGUMENTS = 6


def make_lookup(layout: Layout) -> Any:
    """``lookup(weights, tile_bytes, columns, row, scale, out)``: ``scale`` times a row.

    ``scale`` is a float32's bits.
    """
    return _quantized(layout) if isinstance(layout, QuantLayout) else _plain(layout)


def _plain(layout: FloatLayout) -> Any:
    size = layout.value_bytes
    half = layout.name == "F16"

    @kernel
    def lookup(weights: int, tile_bytes: int, columns: int, row: int, scale: int, out: int) -> None:
        factor = float_of_bits(scale)
        tile = weights + row // TILE_ROWS * tile_bytes
        lane = row % TILE_ROWS
        for column in range(columns):
            if size == 4:
                value = float_of_bits(load_bits(tile + 4 * (column * TILE_ROWS + lane)))
            elif half:
                value = load_half_float(tile + 2 * (column * TILE_ROWS + lane))
            else:
                pair = tile + 4 * (column // 2 * TILE_ROWS + lane) + 2 * (column % 2)
                bits = load_byte(pair) | load_byte(pair + 1) << 8
                value = float_of_bits(bits << 16)
            store_float(out + 4 * column, value * factor)

    return lookup


def _quantized(layout: QuantLayout) -> Any:
    offset, group, bits = layout.offset, layout.group, layout.bits
    two_level, minima = layout.two_level, layout.minima
    super_bytes, scale_bytes = layout.super_bytes, layout.block_scale_bytes
    quant_bytes = layout.block_quant_bytes
    low_bits = PLANES[bits][0]
    high_bits = bits - low_bits

    @kernel
    def quant(block: int, lane: int, column: int) -> int:
        """A block's unsigned value: the bits of its low plane and, above them, of its high one."""
        word, byte = column // 4, column % 4
        place = block + 4 * (word % low_bits * TILE_ROWS + lane) + byte
        value = load_byte(place) >> (low_bits * (word // low_bits)) & ((1 << low_bits) - 1)
        if high_bits:
            high = block + TILE_ROWS * BLOCK * low_bits // 8
            place = high + 4 * (word % high_bits * TILE_ROWS + lane) + byte
            plane = load_byte(place) >> (high_bits * (word // high_bits)) & ((1 << high_bits) - 1)
            value |= plane << low_bits
        return value

    @kernel
    def lookup(weights: int, tile_bytes: int, columns: int, row: int, scale: int, out: int) -> None:
        factor = float_of_bits(scale)
        tile = weights + row // TILE_ROWS * tile_bytes
        lane = row % TILE_ROWS
        scales = tile + (columns // SUPERBLOCK * super_bytes + LINE - 1) // LINE * LINE
        quants = scales + (columns // BLOCK * scale_bytes + LINE - 1) // LINE * LINE
        each = TILE_ROWS * (1 if two_level else 2) * (2 if minima else 1)
        for first in range(0, columns, group):
            place = scales + first // group * each
            minimum = float32(0.0)
            if two_level:
                top = tile + first // SUPERBLOCK * super_bytes + 2 * lane
                step = load_half_float(top) * float32(load_signed_byte(place + lane))
                if minima:
                    least = load_half_float(top + 2 * TILE_ROWS)
                    minimum = -(least * float32(load_signed_byte(place + TILE_ROWS + lane)))
            else:
                step = load_half_float(place + 2 * lane)
                if minima:
                    minimum = load_half_float(place + 2 * (TILE_ROWS + lane))
            for column in range(first, first + group):
                block = quants + column // BLOCK * quant_bytes
                value = step * float32(quant(block, lane, column % BLOCK) - offset)
                if minima:
                    value = value + minimum
                store_float(out + 4 * column, value * factor)

    return lookup
