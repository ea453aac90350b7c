"""A matrix of tiles against a step's activations, for each layout.

``matmul(weights, tile_bytes, columns, first, last, tokens, x, x_scales, x_sums, out, out_stride)``
computes tiles ``first`` to ``last`` - 1 for all tokens. ``x`` and what follows lie as
`caldrix_cpu.codegen.activations` packs them; ``out`` is float32, ``out_stride`` bytes from a token
to the next, and tile ``first`` writes its 16 values at its beginning. The last group of tokens is
filled up to a power of two, so ``out`` needs room for as many rows.
"""

from __future__ import annotations

from typing import Any

from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.activations import filled_group
from caldrix_cpu.codegen.float_tile import column_tile, pair_tile
from caldrix_cpu.codegen.groups import by_group
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


def make_matmul(layout: Layout, *, exact: bool) -> Any:
    """The kernel of a layout; ``exact`` keeps activations in float32 where weights are bfloat16."""
    most = machine.TARGET.group
    one_group = _one_group(layout, exact)

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
            to = out + (tile - first) * _OUT_BYTES
            token = 0
            while token < tokens:
                group = filled_group(tokens - token, most)
                one_group(
                    group, weights, tile_bytes, tile, columns, token,
                    x, x_scales, x_sums, to + token * out_stride, out_stride,
                )  # fmt: skip
                token += group

    return matmul


def _one_group(layout: Layout, exact: bool) -> Any:
    """The layout's kernel for one tile and a group of tokens that begins with ``token``."""
    if isinstance(layout, QuantLayout):
        return _quantized(layout)
    if layout.name in ("F32", "F16"):
        return _columns(layout)
    return _pairs(layout, exact)


def _quantized(layout: QuantLayout) -> Any:
    tile_kernel = by_group(lambda tokens: quant_tile(layout, tokens))
    super_bytes, scale_bytes = layout.super_bytes, layout.block_scale_bytes
    groups = BLOCK // layout.group

    @kernel
    def one_group(
        group: int, weights: int, tile_bytes: int, tile: int, columns: int, token: int,
        x: int, x_scales: int, x_sums: int, out: int, out_stride: int,
    ) -> None:  # fmt: skip
        blocks = columns // BLOCK
        supers = weights + tile * tile_bytes
        scales = supers + (columns // SUPERBLOCK * super_bytes + LINE - 1) // LINE * LINE
        quants = scales + (blocks * scale_bytes + LINE - 1) // LINE * LINE
        xq = x + token * columns
        xs = x_scales + token * blocks * 4
        xc = x_sums + token * blocks * 4 * groups
        tile_kernel(group, supers, scales, quants, xq, xs, xc, blocks, out, out_stride)

    return one_group


def _columns(layout: FloatLayout) -> Any:
    step = layout.value_bytes * TILE_ROWS

    def make(tokens: int) -> Any:
        tile = column_tile(layout.value_bytes, tokens)

        @kernel
        def packed(row: int, x: int, columns: int, out: int, out_stride: int) -> None:
            # Steps that the compiler knows cost no register.
            tile(row, step, x, 4 * tokens, 4, columns, out, out_stride)

        return packed

    tile_kernel = by_group(make)

    @kernel
    def one_group(
        group: int, weights: int, tile_bytes: int, tile: int, columns: int, token: int,
        x: int, x_scales: int, x_sums: int, out: int, out_stride: int,
    ) -> None:  # fmt: skip
        row = weights + tile * tile_bytes
        values = x + token * columns * 4
        tile_kernel(group, row, values, columns, out, out_stride)

    return one_group


def _pairs(layout: FloatLayout, exact: bool) -> Any:
    compressed = layout.compressed
    tile_kernel = by_group(lambda tokens: pair_tile(tokens, compressed=compressed, exact=exact))
    x_bytes = 4 if exact else 2

    @kernel
    def one_group(
        group: int, weights: int, tile_bytes: int, tile: int, columns: int, token: int,
        x: int, x_scales: int, x_sums: int, out: int, out_stride: int,
    ) -> None:  # fmt: skip
        if compressed:
            headers = weights + load_int(weights + 8 * tile)
            row = headers + (columns // BLOCK * 2 + LINE - 1) // LINE * LINE
        else:
            headers = 0
            row = weights + tile * tile_bytes
        values = x + token * columns * x_bytes
        tile_kernel(group, headers, row, values, columns // 2, out, out_stride)

    return one_group
