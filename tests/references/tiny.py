"""Tiny random checkpoints in each family's published layout, the same on every machine.

The script that captures reference logits and the tests that compare with them both build the
checkpoints here, so no weights are stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

PROMPT = tuple((7 * position * position + 3 * position + 1) % 96 for position in range(40))
CHECKED_POSITIONS = (0, 1, 7, 8, 9, 20, 31, 39)

_SIZES: Mapping[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        **_SIZES,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "head_dim": 16,
        "rope_theta": 10_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "tie_word_embeddings": False,
    },
    "llama-biased": {
        **_SIZES,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "attention_bias": True,
        "mlp_bias": True,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
        "tie_word_embeddings": True,
    },
    "qwen2": {
        **_SIZES,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 1_000_000.0,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
    },
    "qwen2-sliding": {
        **_SIZES,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "rope_theta": 10_000.0,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 1,
        "tie_word_embeddings": False,
    },
    "qwen3": {
        **_SIZES,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "head_dim": 16,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        **_SIZES,
        "num_hidden_layers": 7,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 16,
        "query_pre_attn_scalar": 16,
        "sliding_window": 9,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        },
        "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
        "tie_word_embeddings": True,
    },
    # As config.json files of the first releases say the same things.
    "gemma3-early": {
        **_SIZES,
        "num_hidden_layers": 7,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 16,
        "query_pre_attn_scalar": 24,
        "sliding_window": 9,
        "sliding_window_pattern": 3,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
    "qwen3_5": {
        **_SIZES,
        "num_hidden_layers": 4,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_act": "silu",
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10_000_000.0,
            "partial_rotary_factor": 0.25,
            "mrope_interleaved": True,
            "mrope_section": [1, 1, 0],
        },
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "tie_word_embeddings": True,
    },
    # Value heads that share key heads, layers in another order, and all that may be left out.
    "qwen3_5-grouped": {
        **_SIZES,
        "num_hidden_layers": 4,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_act": "silu",
        "head_dim": 24,
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_conv_kernel_dim": 3,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 12,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "tie_word_embeddings": False,
    },
}


def weights(name: str) -> dict[str, np.ndarray]:
    """The checkpoint's tensors under their published names, float32."""
    return weights_of(CONFIGS[name], seed=sorted(CONFIGS).index(name))


def weights_of(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random tensors for any configuration, under their published names, float32."""
    random = np.random.Generator(np.random.PCG64(seed))
    hidden, heads, kv_heads = (
        config[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    head_dim = config.get("head_dim", hidden // heads)
    gemma = config["model_type"] == "gemma3_text"
    delta = config["model_type"] == "qwen3_5_text"

    def matrix(rows: int, columns: int) -> np.ndarray:
        values: np.ndarray = 1.5 * random.standard_normal((rows, columns)) / columns**0.5
        return values.astype(np.float32)

    def norm(width: int, *, plain: bool = False) -> np.ndarray:
        centre = 0.0 if (gemma or delta) and not plain else 1.0
        return (centre + 0.2 * random.standard_normal(width)).astype(np.float32)

    def bias(width: int) -> np.ndarray:
        return (0.3 * random.standard_normal(width)).astype(np.float32)

    def delta_rule(layer: str) -> None:
        key_heads, value_heads = (config[f"linear_num_{each}_heads"] for each in ("key", "value"))
        values = value_heads * config["linear_value_head_dim"]
        channels = 2 * key_heads * config["linear_key_head_dim"] + values
        for part, width in (("qkv", channels), ("z", values), ("b", value_heads)):
            tensors[f"{layer}.in_proj_{part}.weight"] = matrix(width, hidden)
        tensors[f"{layer}.in_proj_a.weight"] = matrix(value_heads, hidden)
        taps = config["linear_conv_kernel_dim"]
        tensors[f"{layer}.conv1d.weight"] = matrix(channels, taps)[:, None]
        # Decays from almost all to almost nothing.
        tensors[f"{layer}.A_log"] = random.uniform(-4, 1, value_heads).astype(np.float32)
        tensors[f"{layer}.dt_bias"] = bias(value_heads)
        tensors[f"{layer}.norm.weight"] = norm(config["linear_value_head_dim"], plain=True)
        tensors[f"{layer}.out_proj.weight"] = matrix(hidden, values)

    def attends(index: int) -> bool:
        if "layer_types" in config:
            return bool(config["layer_types"][index] != "linear_attention")
        return not delta or index % 4 == 3

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden)}
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}"
        attention = {
            "q": ((2 if delta else 1) * heads * head_dim, hidden),
            "k": (kv_heads * head_dim, hidden),
            "v": (kv_heads * head_dim, hidden),
            "o": (hidden, heads * head_dim),
        }
        if not attends(index):
            attention.clear()
            delta_rule(f"{layer}.linear_attn")
        for part, shape in attention.items():
            tensors[f"{layer}.self_attn.{part}_proj.weight"] = matrix(*shape)
            if config.get("attention_bias") or (config["model_type"] == "qwen2" and part != "o"):
                tensors[f"{layer}.self_attn.{part}_proj.bias"] = bias(shape[0])
        if attention and (gemma or delta or config["model_type"] == "qwen3"):
            tensors[f"{layer}.self_attn.q_norm.weight"] = norm(head_dim)
            tensors[f"{layer}.self_attn.k_norm.weight"] = norm(head_dim)
        mlp = {
            "gate": (config["intermediate_size"], hidden),
            "up": (config["intermediate_size"], hidden),
            "down": (hidden, config["intermediate_size"]),
        }
        for part, shape in mlp.items():
            tensors[f"{layer}.mlp.{part}_proj.weight"] = matrix(*shape)
            if config.get("mlp_bias"):
                tensors[f"{layer}.mlp.{part}_proj.bias"] = bias(shape[0])
        norms = ["input_layernorm", "post_attention_layernorm"]
        if gemma:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for part in norms:
            tensors[f"{layer}.{part}.weight"] = norm(hidden)
    tensors["model.norm.weight"] = norm(hidden)
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return tensors


def write_checkpoint(name: str, directory: Path) -> Path:
    """Writes config.json and model.safetensors; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIGS[name]))
    save_file(weights(name), directory / "model.safetensors", metadata={"format": "pt"})
    return directory
