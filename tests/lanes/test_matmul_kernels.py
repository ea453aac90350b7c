"""Each layout's product, called by its address, against the same sum in float64.

The reference takes the very numbers that the kernel reads: decoded weights, and activations
rounded by the rule that `caldrix_cpu.codegen.activations` states. What is left is the rounding of
float32 additions: a sum of ``n`` roundings is off by at most ``n * 2**-24`` times the sum of its
terms' magnitudes. A wrong quant, scale or place moves a result by thousands of times that.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from caldrix.weights.blocks import FORMATS
from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles import bf12
from caldrix_cpu.tiles.layouts import LAYOUTS, QuantLayout, padded
from caldrix_cpu.variants import Variant
from tests.support.compiled import EXECUTABLE, Array, float_tensor, named
from tests.support.products import (
    Activations,
    Matrix,
    in_bfloat16,
    in_float32,
    packed,
    product,
    quantized,
)
from tests.support.random_blocks import random_blocks

ROWS, TILES = 37, 3
COUNTS = (1, 2, 3, 4, 5, 8, 9)
MOST_TOKENS = max(COUNTS)
ROUNDING = 2.0**-24
QUANTIZED = [name for name, layout in LAYOUTS.items() if isinstance(layout, QuantLayout)]


def assert_product(
    variant: Variant, unit: str, tensor: Tensor, matrix: Matrix, x: Activations,
    bound: npt.NDArray[np.float64],
) -> None:  # fmt: skip
    """Right for one token and for many, with the very same bits."""
    weights = np.zeros((16 * TILES, x.exact.shape[1]))
    weights[:ROWS, : tensor.shape[1]] = tensor.to_float32()
    alone = np.concatenate(
        [product(variant, unit, matrix, x.only(token), 1) for token in range(MOST_TOKENS)]
    )
    error = np.abs(alone - x.exact @ weights.T)
    assert (error[:, :ROWS] <= bound).all()
    assert not alone[:, ROWS:].any()
    for tokens in COUNTS:
        together = product(variant, unit, matrix, x, tokens)
        np.testing.assert_array_equal(together, alone[:tokens])
    np.testing.assert_array_equal(product(variant, unit, matrix, x, 3, 1, 3), alone[:3, 16:])


@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("row_blocks", [1, 3, 8])
def test_quantized_products(variant: Variant, name: str, row_blocks: int) -> None:
    layout, kind = LAYOUTS[name], FORMATS[name]
    assert isinstance(layout, QuantLayout)
    columns = row_blocks * kind.block_values
    data = random_blocks(kind, ROWS, row_blocks, seed=row_blocks)
    tensor = Tensor("t", (ROWS, columns), kind, data)
    x = quantized(activations(columns), halves=layout.group == 16)

    parts = tensor.unpack()
    by_group = (ROWS, -1, parts.quants.shape[2])
    scales = np.abs(parts.scales.astype(np.float64)).reshape(ROWS, -1)
    # The offset is taken off by a term of its own, so stored quants count, not their values.
    stored = (parts.quants.astype(np.int64) + layout.offset).reshape(by_group)
    xs = np.abs(x.exact).reshape(MOST_TOKENS, -1, by_group[2])
    terms = np.einsum("rgi,rg,tgi->tr", stored, scales, xs)
    terms += layout.offset * np.einsum("rg,tgi->tr", scales, xs)
    if parts.minima is not None:
        minima = np.abs(parts.minima.astype(np.float64)).reshape(ROWS, -1)
        terms += np.einsum("rg,tgi->tr", minima, xs)
    # Two additions a group, and at most three roundings within a term.
    roundings = 2 * columns / layout.group + 3
    assert_product(
        variant, f"matmul-{name}", tensor, packed(tensor, name), x, roundings * ROUNDING * terms
    )


@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "BF12"])
@pytest.mark.parametrize("columns", [6, 48, 320])
def test_float_products(variant: Variant, name: str, columns: int) -> None:
    if not bf12.takes(columns) and name == "BF12":
        columns = 32
    exact = name in ("BF16", "BF12")
    assert_float_product(variant, f"matmul-{name}" + exact * "-exact", name, columns, in_float32)


@pytest.mark.parametrize("name", ["BF16", "BF12"])
@pytest.mark.parametrize("columns", [32, 320])
def test_products_of_bfloat16_pairs(name: str, columns: int) -> None:
    for variant in EXECUTABLE:
        if variant.dot:
            assert_float_product(variant, f"matmul-{name}", name, columns, in_bfloat16)


def assert_float_product(
    variant: Variant, unit: str, name: str, columns: int, pack: Callable[[Array], Activations]
) -> None:
    tensor = float_matrix(columns, "BF16" if name == "BF12" else name)
    values = np.zeros((MOST_TOKENS, padded(columns, 4)), np.float32)
    values[:, :columns] = activations(columns)
    x = pack(values)
    weights = np.zeros((ROWS, values.shape[1]))
    weights[:, :columns] = tensor.to_float32()
    terms = np.abs(x.exact) @ np.abs(weights).T
    # An addition a column, and a rounding of the product where it is not fused.
    bound = (values.shape[1] + 2) * ROUNDING * terms
    assert_product(variant, unit, tensor, packed(tensor, name), x, bound)


def activations(columns: int) -> Array:
    """Ordinary numbers, some of them large, and in one token a block of zeros."""
    values = np.random.default_rng(columns).standard_normal((MOST_TOKENS, columns))
    values[:, ::29] *= 40
    values[2, :32] = 0
    return values.astype(np.float32)


def float_matrix(columns: int, kind: str) -> Tensor:
    """Blocks of near and of far exponents, with zeros among them."""
    rng = np.random.default_rng(columns)
    values = rng.standard_normal((ROWS, columns)) / 8
    values[:16, -6:] *= np.exp2(rng.integers(-12, 12, (16, 6)))
    values[5, ::7] = 0
    return float_tensor(values, kind)


@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
def test_compressed_bfloat16_gives_the_bits_of_plain(variant: Variant) -> None:
    tensor = float_matrix(320, "BF16")
    plan = bf12.measure([bf12.Part(tensor)])
    assert 0.5 < plan.share_that_fits < 1
    for suffix, pack in (("-exact", in_float32), ("", in_bfloat16))[: 1 + variant.dot]:
        x = pack(activations(320))
        plain, short = (
            product(variant, f"matmul-{name}{suffix}", packed(tensor, name), x, MOST_TOKENS)
            for name in ("BF16", "BF12")
        )
        np.testing.assert_array_equal(short.view(np.uint32), plain.view(np.uint32))


@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
def test_every_float16_is_read_exactly(variant: Variant) -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)[:, None]
    tensor = Tensor("t", halves.shape, FORMATS["F16"], halves.view(np.uint8))
    one = in_float32(np.array([[1, 0, 0, 0]], np.float32))
    read = product(variant, "matmul-F16", packed(tensor, "F16"), one, 1)
    np.testing.assert_array_equal(read[0], tensor.to_float32()[:, 0])
