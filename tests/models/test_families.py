"""Each family's Program, run by the numpy lane, against transformers' logits.

Both compute in float32 and differ only in the order of sums, some 1e-6 relative to the largest
logit in these sizes; the tolerance leaves a factor of ten.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caldrix.models.lane import LaneOptions, Slice
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix_cpu.numpy_executor import numpy_executor
from tests.references import tiny
from tests.references.arrays import load_arrays
from tests.support.as_gguf import write_gguf

REFERENCES = Path(__file__).parents[1] / "references" / "data" / "families.npz"
TOLERANCE = 1e-5

PROMPT = np.array(tiny.PROMPT, np.int64)
IN_GGUF = ["llama", "llama-biased", "qwen2", "qwen3", "gemma3"]


def reference(name: str) -> np.ndarray:
    return load_arrays(REFERENCES)[name]


def logits_of(checkpoint: Path, cuts: tuple[int, ...] = ()) -> np.ndarray:
    """All logits of the prompt, computed in the slices that ``cuts`` divide it into."""
    parts = []
    with open_checkpoint(checkpoint) as opened:
        bound = bind(opened)
        options = LaneOptions(context=64, rows=2)
        with numpy_executor(bound.program, bound.weights, options) as executor:
            for start, stop in zip((0, *cuts), (*cuts, len(PROMPT)), strict=True):
                parts.append(executor.step([Slice(1, start, PROMPT[start:stop], stop - start)]))
    return np.concatenate(parts)


def assert_close(logits: np.ndarray, expected: np.ndarray) -> None:
    difference = np.abs(logits - expected).max() / np.abs(expected).max()
    assert difference < TOLERANCE


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_equal_the_reference(name: str, tmp_path: Path) -> None:
    logits = logits_of(tiny.write_checkpoint(name, tmp_path))
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference(name))


@pytest.mark.parametrize("name", IN_GGUF)
def test_a_gguf_file_gives_the_same_logits(name: str, tmp_path: Path) -> None:
    logits = logits_of(write_gguf(name, tmp_path / "tiny.gguf"))
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference(name))


@pytest.mark.parametrize("key", ["rope.scaling.factor", "rope.scale_linear"])
def test_a_scaling_whose_kind_is_not_named_is_linear(key: str, tmp_path: Path) -> None:
    changed = {"llama.rope.scaling.factor": None, f"llama.{key}": 2.0}
    logits = logits_of(write_gguf("llama-biased", tmp_path / "tiny.gguf", changed=changed))
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference("llama-biased"))


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("cuts", [tuple(range(1, 40)), (1, 3, 17, 18)], ids=["decode", "slices"])
def test_slices_give_the_same_logits(name: str, cuts: tuple[int, ...], tmp_path: Path) -> None:
    logits = logits_of(tiny.write_checkpoint(name, tmp_path), cuts)
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference(name))
