"""Each family's Program, by numpy and by the compiled kernels, against transformers' logits.

All compute in float32 and differ only in the order of sums, some 2e-6 relative to the largest
logit in these sizes; the tolerance leaves a factor of five. What is rounded besides has a
tolerance of its own, some three times what was measured: keys and values kept in float16, each off
by up to ``2**-12`` of itself, move the logits by up to 1.4e-3, and activations in bfloat16, each
off by up to ``2**-9`` of itself, by up to 1.9e-2.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve, frozen

from caldrix.models.lane import Executor, LaneOptions, Slice
from caldrix.models.program import Program
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.tensor import Tensor
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.numpy_executor import numpy_executor
from caldrix_cpu.variants import Variant
from tests.references import tiny
from tests.references.arrays import load_arrays
from tests.support.as_gguf import write_gguf
from tests.support.compiled import BEST, EXECUTABLE, float_tensor, named

REFERENCES = Path(__file__).parents[1] / "references" / "data" / "families.npz"
TOLERANCE = 1e-5
HALF_CACHE_TOLERANCE = 5e-3
BFLOAT_TOLERANCE = 5e-2

PROMPT = np.array(tiny.PROMPT, np.int64)
IN_GGUF = ["llama", "llama-biased", "qwen2", "qwen3", "gemma3"]


def reference(name: str) -> np.ndarray:
    return load_arrays(REFERENCES)[name]


@frozen
class Kernels:
    """What computes: a variant of compiled kernels, or numpy."""

    variant: Variant | None = None
    kv_dtype: str = "f32"

    def __str__(self) -> str:
        return "numpy" if self.variant is None else f"{self.variant.name}-{self.kv_dtype}"

    def executor(
        self, program: Program, weights: Mapping[str, Tensor]
    ) -> AbstractContextManager[Executor]:
        options = LaneOptions(context=64, rows=2)
        if self.variant is None:
            return numpy_executor(program, weights, options)
        options = evolve(options, kv_dtype=self.kv_dtype)
        return tape_executor(program, weights, options, self.variant)


NUMPY, COMPILED = Kernels(), Kernels(BEST)
IN_FLOAT32 = (NUMPY, *(Kernels(variant) for variant in EXECUTABLE))
either = pytest.mark.parametrize("kernels", [NUMPY, COMPILED], ids=str)


def logits_of(
    checkpoint: Path, cuts: tuple[int, ...] = (), *, kernels: Kernels = NUMPY
) -> np.ndarray:
    """All logits of the prompt, computed in the slices that ``cuts`` divide it into."""
    with open_checkpoint(checkpoint) as opened:
        bound = bind(opened)
        return logits_by(kernels, bound.program, bound.weights, cuts)


def logits_by(
    kernels: Kernels, program: Program, weights: Mapping[str, Tensor], cuts: tuple[int, ...] = ()
) -> np.ndarray:
    parts = []
    with kernels.executor(program, weights) as executor:
        for start, stop in zip((0, *cuts), (*cuts, len(PROMPT)), strict=True):
            logits = executor.step([Slice(1, start, PROMPT[start:stop], stop - start)])
            parts.append(logits.copy())
    return np.concatenate(parts)


def assert_close(logits: np.ndarray, expected: np.ndarray, tolerance: float = TOLERANCE) -> None:
    difference = np.abs(logits - expected).max() / np.abs(expected).max()
    assert difference < tolerance


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("kernels", IN_FLOAT32, ids=str)
def test_logits_equal_the_reference(name: str, kernels: Kernels, tmp_path: Path) -> None:
    logits = logits_of(tiny.write_checkpoint(name, tmp_path), kernels=kernels)
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference(name))


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
def test_a_cache_in_float16_moves_them_a_little(
    name: str, variant: Variant, tmp_path: Path
) -> None:
    checkpoint = tiny.write_checkpoint(name, tmp_path)
    logits = logits_of(checkpoint, kernels=Kernels(variant, "f16"))
    rounded = logits[list(tiny.CHECKED_POSITIONS)]
    assert_close(rounded, reference(name), HALF_CACHE_TOLERANCE)
    with pytest.raises(AssertionError):
        assert_close(rounded, reference(name))


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("kind", ["BF16", "F16"])
@pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
def test_checkpoints_in_halves(name: str, kind: str, variant: Variant, tmp_path: Path) -> None:
    """Numpy decodes such weights to float32, where compiled kernels keep them as they are."""
    with open_checkpoint(tiny.write_checkpoint(name, tmp_path)) as opened:
        bound = bind(opened)
        weights = {
            name: float_tensor(tensor.to_float32(), kind) for name, tensor in bound.weights.items()
        }
        expected = logits_by(NUMPY, bound.program, weights)
        logits = logits_by(Kernels(variant), bound.program, weights)
        in_bfloat16 = kind == "BF16" and variant.dot
        assert_close(logits, expected, BFLOAT_TOLERANCE if in_bfloat16 else TOLERANCE)
        # The same values in a float32 file are multiplied with float32 activations.
        widened = {name: float_tensor(tensor.to_float32()) for name, tensor in weights.items()}
        assert_close(logits_by(Kernels(variant), bound.program, widened), expected)


@pytest.mark.parametrize("name", IN_GGUF)
@either
def test_a_gguf_file_gives_the_same_logits(name: str, kernels: Kernels, tmp_path: Path) -> None:
    logits = logits_of(write_gguf(name, tmp_path / "tiny.gguf"), kernels=kernels)
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference(name))


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_scaling_whose_kind_is_not_named_is_linear(key: str, tmp_path: Path) -> None:
    changed = {"llama.rope.scaling.factor": None, f"llama.{key}": 2.0}
    logits = logits_of(write_gguf("llama-biased", tmp_path / "tiny.gguf", changed=changed))
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference("llama-biased"))


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("cuts", [tuple(range(1, 40)), (1, 3, 17, 18)], ids=["decode", "slices"])
@either
def test_slices_give_the_same_logits(
    name: str, cuts: tuple[int, ...], kernels: Kernels, tmp_path: Path
) -> None:
    logits = logits_of(tiny.write_checkpoint(name, tmp_path), cuts, kernels=kernels)
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference(name))
