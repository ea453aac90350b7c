"""A matrix of tiles against a step's activations, for each layout.

``matmul(weights, tile_bytes, columns, first, last, tokens, x, x_scales, x_sums, out, out_stride)``
computes tiles ``first`` to ``last`` - 1 for all tokens. ``x`` and what follows lie as
`caldrix_cpu.codegen.activations` packs them; ``out`` is float32, ``out_stride`` bytes from a token
to the next, and tile ``first`` writes its 16 values at its beginning. The last group of tokens is
filled up to a power of two, so ``out`` needs room for as many rows.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.activations import filled_group
from caldrix_cpu.codegen.float_tile import column_tile, pair_tile
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import load_int
from caldrix_cpu.codegen.quant_tile import quant_tile
from caldrix_cpu.tiles.layouts import (
    BLOCK,
    LINE,
    SUPERBLOCK,
    TILE_ROWS,
    FloatLayout,
    Layout,
    QuantLayout,
)

MATMUL_ARGUMENTS = 11
_OUT_BYTES = 4 * TILE_ROWS


@frozen
class _Widths:
    """A tile kernel for each size that a group of tokens may have."""

    one: Any
    two: Any
    four: Any
    eight: Any


def make_matmul(layout: Layout, *, exact: bool) -> Any:
    """The kernel of a layout; ``exact`` keeps activations in float32 where weights are bfloat16."""
    if isinstance(layout, QuantLayout):
        return _quantized(layout)
    if layout.name in ("F32", "F16"):
        return _columns(layout)
    return _pairs(layout, exact)


def _quantized(layout: QuantLayout) -> Any:
    most = machine.TARGET.group
    tile_1, tile_2, tile_4 = (quant_tile(layout, tokens) for tokens in (1, 2, 4))
    tile_8 = quant_tile(layout, most)
    super_bytes, scale_bytes = layout.super_bytes, layout.block_scale_bytes
    groups = BLOCK // layout.group

    @kernel
    def matmul(
        weights: int,
        tile_bytes: int,
        columns: int,
        first: int,
        last: int,
        tokens: int,
        x: int,
        x_scales: int,
        x_sums: int,
        out: int,
        out_stride: int,
    ) -> None:
        blocks = columns // BLOCK
        scales_at = (columns // SUPERBLOCK * super_bytes + LINE - 1) // LINE * LINE
        quants_at = scales_at + (blocks * scale_bytes + LINE - 1) // LINE * LINE
        for tile in range(first, last):
            supers = weights + tile * tile_bytes
            scales, quants = supers + scales_at, supers + quants_at
            target = out + (tile - first) * _OUT_BYTES
            token = 0
            while token < tokens:
                group = filled_group(tokens - token, most)
                xq = x + token * columns
                xs = x_scales + token * blocks * 4
                xc = x_sums + token * blocks * 4 * groups
                to = target + token * out_stride
                if group == most:
                    tile_8(supers, scales, quants, xq, xs, xc, blocks, to, out_stride)
                elif group == 4:
                    tile_4(supers, scales, quants, xq, xs, xc, blocks, to, out_stride)
                elif group == 2:
                    tile_2(supers, scales, quants, xq, xs, xc, blocks, to, out_stride)
                else:
                    tile_1(supers, scales, quants, xq, xs, xc, blocks, to, out_stride)
                token += group

    return matmul


def _columns(layout: FloatLayout) -> Any:
    most = machine.TARGET.group
    size = layout.value_bytes
    step = size * TILE_ROWS
    tile_1, tile_2, tile_4 = (column_tile(size, tokens) for tokens in (1, 2, 4))
    tile_8 = column_tile(size, most)

    @kernel
    def matmul(
        weights: int,
        tile_bytes: int,
        columns: int,
        first: int,
        last: int,
        tokens: int,
        x: int,
        x_scales: int,
        x_sums: int,
        out: int,
        out_stride: int,
    ) -> None:
        for tile in range(first, last):
            row = weights + tile * tile_bytes
            target = out + (tile - first) * _OUT_BYTES
            token = 0
            while token < tokens:
                group = filled_group(tokens - token, most)
                values = x + token * columns * 4
                to = target + token * out_stride
                if group == most:
                    tile_8(row, step, values, 4 * most, 4, columns, to, out_stride)
                elif group == 4:
                    tile_4(row, step, values, 16, 4, columns, to, out_stride)
                elif group == 2:
                    tile_2(row, step, values, 8, 4, columns, to, out_stride)
                else:
                    tile_1(row, step, values, 4, 4, columns, to, out_stride)
                token += group

    return matmul


def _pairs(layout: FloatLayout, exact: bool) -> Any:
    most = machine.TARGET.group
    compressed = layout.compressed
    tile_1, tile_2, tile_4, tile_8 = (
        pair_tile(tokens, compressed=compressed, exact=exact) for tokens in (1, 2, 4, most)
    )
    x_bytes = 4 if exact else 2

    @kernel
    def matmul(
        weights: int,
        tile_bytes: int,
        columns: int,
        first: int,
        last: int,
        tokens: int,
        x: int,
        x_scales: int,
        x_sums: int,
        out: int,
        out_stride: int,
    ) -> None:
        pairs = columns // 2
        for tile in range(first, last):
            if compressed:
                headers = weights + load_int(weights + 8 * tile)
                row = headers + (columns // BLOCK * 2 + LINE - 1) // LINE * LINE
            else:
                headers = 0
                row = weights + tile * tile_bytes
            target = out + (tile - first) * _OUT_BYTES
            token = 0
            while token < tokens:
                group = filled_group(tokens - token, most)
                values = x + token * columns * x_bytes
                to = target + token * out_stride
                if group == most:
                    tile_8(headers, row, values, pairs, to, out_stride)
                elif group == 4:
                    tile_4(headers, row, values, pairs, to, out_stride)
                elif group == 2:
                    tile_2(headers, row, values, pairs, to, out_stride)
                else:
                    tile_1(headers, row, values, pairs, to, out_stride)
                token += group

    return matmul
