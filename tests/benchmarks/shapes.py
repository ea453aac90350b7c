"""Models by their shapes alone: Programs from published configurations, and weights of no meaning.

Speed depends on sizes and formats, not on what a weight says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from attrs import evolve

from caldrix.models.fields import Fields
from caldrix.models.program import Logits, Program, RmsNorm
from caldrix.models.registry import FAMILIES
from caldrix.models.tensors import NamedTensors
from caldrix.weights.blocks import FORMATS
from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles.layouts import LAYOUTS, TILE_ROWS, QuantLayout
from tests.benchmarks.models import QWEN3_SHAPE
from tests.support.compiled import float_tensor, random_tensor

Shape = Literal["smollm2", "gemma3-270m", "qwen3-0.6b", "llama-8b"]
Format = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k", "q6_k", "q4_k_m"]

CONFIGS: Mapping[Shape, Mapping[str, Any]] = {
    "smollm2": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49_152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "gemma3-270m": {
        "model_type": "gemma3_text",
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "vocab_size": 262_144,
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "query_pre_attn_scalar": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": QWEN3_SHAPE,
    "llama-8b": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
}
"""As the published config.json files have them, as far as sizes depend on it."""

# What llama.cpp takes for a matrix whose rows are no multiple of 256.
_OTHERWISE = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}


def program_of(config: Mapping[str, Any], layers: int | None = None) -> Program:
    """The Program of a configuration, with its first ``layers`` alone if that is given."""
    config = {**config, "num_hidden_layers": layers or config["num_hidden_layers"]}
    (family,) = (each for each in FAMILIES if config["model_type"] in each.model_types)
    given = {name: _described(name, shape) for name, shape in _shapes(config).items()}
    return family.from_config(
        Fields("config", config), NamedTensors("shape", given, lambda name: (name,))
    )


def layouts_of(program: Program, file_format: Format) -> Mapping[str, str]:
    """How each matrix of a Program is kept in a file of a format, by the weight's name.

    ``q4_k_m`` is llama.cpp's mixture: 6 bits for the output, and for the values and the last
    projection of every layer near the beginning or the end, and of every third between.
    """
    matrices = {name: shape for name, shape in program.weights.items() if len(shape) == 2}
    count = 1 + max((_layer(name) for name in matrices), default=0)
    output = program.operations[-1]
    assert isinstance(output, Logits)
    return {
        name: _layout(name, shape[-1], file_format, count, is_output=name == output.weight)
        for name, shape in matrices.items()
    }


def random_weights(program: Program, layouts: Mapping[str, str]) -> Mapping[str, Tensor]:
    """Weights for a Program: a few random rows again and again, and norms that change nothing."""
    offsets = {each.weight: each.offset for each in program.operations if isinstance(each, RmsNorm)}
    weights = {}
    for seed, (name, shape) in enumerate(program.weights.items()):
        if name in layouts:
            rows, columns = shape
            few = random_tensor((TILE_ROWS, columns), layouts[name], seed)
            data = np.resize(few.data, (rows, few.data.shape[1]))
            weights[name] = Tensor(name, (rows, columns), few.format, data)
        else:
            ones = np.full(shape, 1.0 - offsets.get(name, 0.0))
            weights[name] = evolve(float_tensor(ones), name=name)
    return weights


def _layout(name: str, columns: int, file_format: Format, layers: int, *, is_output: bool) -> str:
    layout = file_format.upper()
    if file_format == "q4_k_m":
        sensitive = name.endswith(("v_proj.weight", "down_proj.weight"))
        more = is_output or (sensitive and _has_more(_layer(name), layers))
        layout = "Q6_K" if more else "Q4_K"
    kept = LAYOUTS[layout]
    if isinstance(kept, QuantLayout) and not kept.takes(columns):
        return _OTHERWISE[layout]
    return layout


def _has_more(layer: int, layers: int) -> bool:
    """Whether llama.cpp spends more bits on a layer."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def _layer(name: str) -> int:
    """The layer that a weight belongs to; -1 for none."""
    _, inside, rest = name.partition("model.layers.")
    return int(rest.partition(".")[0]) if inside else -1


def _described(name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor of a shape whose bytes take no memory."""
    rows = math.prod(shape[:-1])
    data = np.broadcast_to(np.zeros(1, np.uint8), (rows, 2 * shape[-1]))
    return Tensor(name, shape, FORMATS["BF16"], data)


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint's tensors, as published ones have them."""
    hidden, middle, head_dim = (
        config[key] for key in ("hidden_size", "intermediate_size", "head_dim")
    )
    queries = config["num_attention_heads"] * head_dim
    keys = config["num_key_value_heads"] * head_dim
    gemma = config["model_type"] == "gemma3_text"
    layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (middle, hidden),
        "mlp.up_proj": (middle, hidden),
        "mlp.down_proj": (hidden, middle),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    if gemma or config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (head_dim,), "self_attn.k_norm": (head_dim,)}
    if gemma:
        layer |= {"pre_feedforward_layernorm": (hidden,), "post_feedforward_layernorm": (hidden,)}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        **{
            f"model.layers.{index}.{part}.weight": shape
            for index in range(config["num_hidden_layers"])
            for part, shape in layer.items()
        },
    }
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes
