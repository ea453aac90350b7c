"""What tests of compiled kernels share: the variants that run here, and models to run on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
import numpy.typing as npt

from caldrix.models.lane import Executor, LaneOptions, Slice
from caldrix.models.program import Program
from caldrix.weights.blocks import FORMATS, is_quantized
from caldrix.weights.progress import SILENT
from caldrix.weights.tensor import Tensor
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.library import Kernel, load_kernels
from caldrix_cpu.tape_executor import TapeExecutor
from caldrix_cpu.tiles.floats import bfloat16_bits
from caldrix_cpu.variants import Variant, executable_variants
from tests.support.random_blocks import HALVES, random_blocks

Array = npt.NDArray[np.float32]

EXECUTABLE = executable_variants()
"""The variants of this machine, the fastest first."""
BEST = EXECUTABLE[0]


def named(variant: Variant) -> str:
    return variant.name


@cache
def kernel(variant: Variant, unit: str) -> Kernel:
    """One unit's function, compiled once for all tests."""
    return load_kernels(variant, [unit], SILENT)[unit]


def compiled(
    program: Program,
    weights: Mapping[str, Tensor],
    *,
    context: int,
    rows: int = 1,
    threads: int = 2,
    kv_dtype: str = "f32",
    variant: Variant = BEST,
) -> AbstractContextManager[TapeExecutor]:
    """An executor of compiled kernels."""
    options = LaneOptions(context=context, rows=rows, threads=threads, kv_dtype=kv_dtype)
    return tape_executor(program, weights, options, variant)


def float_tensor(values: npt.NDArray[np.floating], kind: str = "F32", name: str = "t") -> Tensor:
    """Values as a file of that float type holds them, rounded to nearest where they must be."""
    single = np.ascontiguousarray(values, np.float32)
    stored: npt.NDArray[np.generic] = single
    if kind == "BF16":
        stored = bfloat16_bits(single)
    elif kind == "F16":
        stored = single.astype(np.float16)
    rows = stored.reshape(-1, single.shape[-1])
    return Tensor(name, single.shape, FORMATS[kind], rows.view(np.uint8))


def random_tensor(shape: tuple[int, int], kind: str, seed: int) -> Tensor:
    """A matrix in any format, whose products with ordinary activations are ordinary numbers."""
    rows, columns = shape
    rng = np.random.default_rng(seed)
    if not is_quantized(FORMATS[kind]):
        return float_tensor(rng.standard_normal(shape) / columns**0.5, kind)
    block_format = FORMATS[kind]
    data = random_blocks(block_format, rows, columns // block_format.block_values, seed)
    tensor = Tensor("t", shape, block_format, data)
    blocks = data.reshape(-1, block_format.block_bytes)
    spread = tensor.to_float32().std() * columns**0.5
    for at in HALVES[kind]:
        scales = blocks[:, at : at + 2].copy().view("<f2") / spread
        blocks[:, at : at + 2] = scales.astype("<f2").view(np.uint8)
    return tensor


def feed(
    executor: Executor, tokens: Sequence[int], cuts: Sequence[int] = (), row: int = 0
) -> Array:
    """The logits of every token of a sequence, in the slices that ``cuts`` divide it into."""
    ids = np.array(tokens, np.int64)
    parts = [
        executor.step([Slice(row, start, ids[start:stop], stop - start)]).copy()
        for start, stop in zip((0, *cuts), (*cuts, len(ids)), strict=True)
    ]
    return np.concatenate(parts)
