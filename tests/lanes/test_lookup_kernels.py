"""Embeddings read from tiles, against the values that the file's reader decodes: bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from caldrix.weights.blocks import FORMATS, is_quantized
from caldrix.weights.progress import SILENT
from caldrix.weights.tensor import Tensor
from caldrix_cpu import aligned
from caldrix_cpu.arena import address
from caldrix_cpu.assemble import float_bits
from caldrix_cpu.library import load_kernels
from caldrix_cpu.tiles.layouts import LAYOUTS
from caldrix_cpu.tiles.pack import pack_into, packed_bytes
from caldrix_cpu.variants import Variant, executable_variants
from tests.support.random_blocks import random_blocks

ROWS, COLUMNS = 37, 512
VARIANTS = [executable_variants()[0], executable_variants()[-1]]


def tensor_of(name: str) -> Tensor:
    block_format = FORMATS[name]
    if is_quantized(block_format):
        data = random_blocks(block_format, ROWS, COLUMNS // block_format.block_values, seed=5)
    else:
        numbers = np.random.default_rng(5).standard_normal((ROWS, COLUMNS)).astype(np.float32)
        bfloats = numbers.view(np.uint16)[:, 1::2].copy()
        stored: dict[str, npt.NDArray[Any]] = {
            "F32": numbers, "F16": numbers.astype(np.float16), "BF16": bfloats
        }  # fmt: skip
        data = stored[name].view(np.uint8)
    return Tensor("embedding", (ROWS, COLUMNS), block_format, data)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
@pytest.mark.parametrize("name", FORMATS)
def test_rows_are_the_files(name: str, variant: Variant) -> None:
    tensor, layout = tensor_of(name), LAYOUTS[name]
    tiles = aligned.empty((packed_bytes(layout, ROWS, COLUMNS) // 4,)).view(np.uint8)
    pack_into(tiles, tensor, layout)
    unit = f"lookup-{name}"
    lookup = load_kernels(variant, [unit], SILENT)[unit].callable(6)
    scale = 1.7
    expected = tensor.to_float32() * np.float32(scale)
    out = aligned.empty((COLUMNS,))
    for row in (0, 1, 15, 16, 36):
        lookup(
            address(tiles),
            layout.tile_bytes(COLUMNS),
            COLUMNS,
            row,
            float_bits(scale),
            address(out),
        )
        assert np.array_equal(out, expected[row])
