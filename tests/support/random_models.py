"""Small random models of every family, with weights in every format that kernels know."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
from attrs import evolve, frozen
from safetensors.numpy import save_file

from caldrix.models.builder import ProgramBuilder
from caldrix.models.program import KvCache, Program
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles.layouts import LAYOUTS, QuantLayout
from tests.references import tiny
from tests.support.compiled import float_tensor, random_tensor

FORMATS = (
    *(name for name, layout in LAYOUTS.items() if isinstance(layout, QuantLayout)),
    "F32",
    "F16",
    "BF16",
    "BF12",
    "BF16-exact",
    "BF12-exact",
)
"""How matrices are kept; an exact one is of a file in float32 whose values bfloat16 holds."""

VOCAB = 96
_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 128,
}
# Fewer layers, of every kind that a family has.
_LAYERS = {"gemma3": 7, "gemma3-early": 3, "qwen2-sliding": 2, "qwen3_5": 4}


@frozen(eq=False)
class Model:
    """A program and its weights."""

    program: Program
    weights: Mapping[str, Tensor]


@cache
def random_model(family: str, kind: str) -> Model:
    """A model of a configuration of `tiny`, in sizes that every format takes."""
    program, given = _published(family)
    weights: dict[str, Tensor] = {}
    for number, (name, tensor) in enumerate(given.items()):
        if len(tensor.shape) != 2:
            weights[name] = tensor
        else:
            rows, columns = tensor.shape
            weights[name] = evolve(matrix((rows, columns), kind, number), name=name)
    return Model(program, weights)


def matrix(shape: tuple[int, int], kind: str, seed: int) -> Tensor:
    """A random matrix that is kept as ``kind``, one of `FORMATS`."""
    layout, _, exact = kind.partition("-")
    if layout not in ("BF16", "BF12"):
        return random_tensor(shape, kind, seed)
    values = random_tensor(shape, "F32", seed).to_float32()
    if layout == "BF16":
        # Exponents too far apart for 12 bits.
        exponents = np.random.default_rng(seed).integers(-9, 9, shape)
        values *= np.exp2(exponents).astype(np.float32) / 64
    stored = float_tensor(values, "BF16")
    return float_tensor(stored.to_float32()) if exact else stored


@cache
def _published(family: str) -> tuple[Program, Mapping[str, Tensor]]:
    config = {**tiny.CONFIGS[family], **_SIZES}
    config["num_hidden_layers"] = layers = _LAYERS.get(family, 2)
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "config.json").write_text(json.dumps(config))
        save_file(
            tiny.weights_of(config, seed=1),
            Path(directory, "model.safetensors"),
            metadata={"format": "pt"},
        )
        with open_checkpoint(Path(directory)) as checkpoint:
            bound = bind(checkpoint)
            copied = {
                name: evolve(tensor, data=np.array(tensor.data))
                for name, tensor in bound.weights.items()
            }
    return bound.program, copied


def windowed_model(window: int, context: int) -> Model:
    """One layer with a window and one without, and nothing else that takes time."""
    b = ProgramBuilder("test", vocab_size=VOCAB, max_context=context)
    x = b.embed("e", 48)
    for each in (window, None):
        k, v = b.linear(x, "k", 24), b.linear(x, "v", 24)
        x = b.add(x, b.attend(x, k, v, KvCache(2, 12, each), heads=4, scale=0.3))
    program = b.logits(b.select(x), "e")
    rng, shapes = np.random.default_rng(0), program.weights.items()
    weights = {name: float_tensor(rng.standard_normal(shape) / 4) for name, shape in shapes}
    return Model(program, weights)


def tokens(count: int, seed: int) -> list[int]:
    """A random sequence."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, VOCAB, count).tolist()
    return drawn
