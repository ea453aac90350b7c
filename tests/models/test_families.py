"""Each family's Program, by numpy and by the compiled kernels, against transformers' logits.

All compute in float32 and differ only in the order of sums, some 2e-6 relative to the largest
logit in these sizes; the tolerance leaves a factor of five. What is rounded besides has a
tolerance of its own, some three times what was measured: keys and values kept in float16, each off
by up to ``2**-12`` of itself, move the logits by up to 1.4e-3, and activations in bfloat16, each
off by up to ``2**-9`` of itself, by up to 1.9e-2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve, frozen
from safetensors.numpy import save_file

from caldrix.models.lane import Executor, LaneOptions, Slice
from caldrix.models.program import Convolve, DeltaRule, Program, Rope
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
IN_GGUF = ["llama", "llama-biased", "qwen2", "qwen3", "gemma3", "qwen3_5", "qwen3_5-grouped"]


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


def nested(directory: Path) -> Path:
    """As a model that sees is published, with a tower and a layer that guesses a token ahead."""
    directory.mkdir(exist_ok=True)
    text = {key: value for key, value in tiny.CONFIGS["qwen3_5"].items() if key != "architectures"}
    tied = text.pop("tie_word_embeddings")
    config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": tied}
    (directory / "config.json").write_text(json.dumps({**config, "vision_config": {"depth": 1}}))
    tensors = {
        name.replace("model.", "model.language_model.", 1): values
        for name, values in tiny.weights("qwen3_5").items()
    }
    more = ("model.visual.patch_embed.proj.weight", "mtp.layers.0.input_layernorm.weight")
    tensors |= {name: np.ones((2, 2), np.float32) for name in more}
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def test_a_text_model_inside_another(tmp_path: Path) -> None:
    logits = logits_of(nested(tmp_path))
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference("qwen3_5"))


def test_layers_that_guess_ahead_are_left_out_of_a_gguf_file(tmp_path: Path) -> None:
    added = {f"blk.4.{name}": np.ones(48, np.float32) for name in ("attn_norm.weight", "nextn.h")}
    changed = {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    path = write_gguf("qwen3_5", tmp_path / "tiny.gguf", changed=changed, added=added)
    logits = logits_of(path)
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference("qwen3_5"))


@pytest.mark.parametrize(
    "early",
    [
        {"rope_theta": 500.0},
        {"rope_theta": 500.0, "partial_rotary_factor": 0.25},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 500.0},
    ],
    ids=["theta", "factor", "parameters"],
)
def test_ropes_as_early_files_describe_them(early: Mapping[str, object], tmp_path: Path) -> None:
    tiny.write_checkpoint("qwen3_5-grouped", tmp_path)
    config = {**tiny.CONFIGS["qwen3_5-grouped"]}
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps({**config, **early}))
    logits = logits_of(tmp_path)
    assert_close(logits[list(tiny.CHECKED_POSITIONS)], reference("qwen3_5-grouped"))


def test_what_published_files_leave_out_has_the_authors_defaults(tmp_path: Path) -> None:
    """The sizes of decider-0.8b's layers, of which its config.json need not name one."""
    names = ("head_dim", "linear_num_value_heads", "linear_num_key_heads")
    sizes = ("linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim")
    config = {
        **tiny.CONFIGS["qwen3_5"],
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
    }
    save_file(tiny.weights_of(config, seed=1), tmp_path / "model.safetensors", {"format": "pt"})
    short = {key: value for key, value in config.items() if key not in (*names, *sizes)}
    (tmp_path / "config.json").write_text(json.dumps(short))
    with open_checkpoint(tmp_path) as checkpoint:
        program = bind(checkpoint).program
    rules = [each for each in program.operations if isinstance(each, DeltaRule)]
    assert {(rule.heads, rule.key_heads, rule.q.width, rule.v.width) for rule in rules} == {
        (32, 16, 16 * 128, 32 * 128)
    }
    # Constants of the authors' code, which no file names.
    assert {(rule.eps, rule.scale) for rule in rules} == {(1e-6, 128**-0.5)}
    assert {each.taps for each in program.operations if isinstance(each, Convolve)} == {4}
    (rope, *_) = [each for each in program.operations if isinstance(each, Rope)]
    assert len(rope.frequencies) == 256 // 4 // 2


def test_a_gguf_file_that_does_not_say_how_much_of_a_head_turns(tmp_path: Path) -> None:
    path = write_gguf(
        "qwen3_5", tmp_path / "tiny.gguf", changed={"qwen35.rope.dimension_count": None}
    )
    assert_close(logits_of(path)[list(tiny.CHECKED_POSITIONS)], reference("qwen3_5"))
