"""Writes a tiny checkpoint as a GGUF file, the way the published converters lay it out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from caldrix.models.registry import FAMILIES, gguf_name
from tests.references import tiny

_GLOBAL_THETA = {"gemma3": 1_000_000.0}


def write_gguf(
    name: str,
    path: Path,
    *,
    stored_as: str = "F32",
    changed: Mapping[str, int | float | str | None] | None = None,
    added: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A GGUF file with a tiny checkpoint's weights in float32; returns its path.

    Matrices whose widths a quantized ``stored_as`` takes are kept so.
    ``changed`` sets metadata keys, or with None leaves them out; ``added`` are tensors besides.
    """
    config = tiny.CONFIGS[name]
    renamed = {"gemma3_text": "gemma3", "qwen3_5_text": "qwen35"}
    architecture = renamed.get(config["model_type"], config["model_type"])
    family = next(family for family in FAMILIES if architecture in family.architectures)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim", config["hidden_size"] // heads)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_context_length(config["max_position_embeddings"])
    if architecture == "qwen35":
        _add_delta_rule(writer, config)
    _add_rope(writer, config, head_dim)
    for tensor, values in tiny.weights(name).items():
        stored = values
        if architecture == "llama" and (".q_proj." in tensor or ".k_proj." in tensor):
            stored = _interleaved(values, heads if ".q_proj" in tensor else kv_heads)
        if architecture in ("gemma3", "qwen35") and "norm" in tensor:
            stored = values if ".linear_attn." in tensor else values + 1
        if ".linear_attn." in tensor:
            stored = _of_delta_rule(tensor, values, config)
        kept, named = np.ascontiguousarray(stored), gguf_name(tensor, family.gguf_names)
        if stored_as != "F32" and kept.ndim == 2 and kept.shape[-1] % 32 == 0:
            quantized = gguf.GGMLQuantizationType[stored_as]
            blocks = gguf.quants.quantize(kept, quantized)
            writer.add_tensor(named, blocks, raw_dtype=quantized)
        else:
            writer.add_tensor(named, kept)
    for tensor, values in (added or {}).items():
        writer.add_tensor(tensor, values)
    for key, value in (changed or {}).items():
        writer.kv_data[0].pop(key, None)
        if value is not None:
            kind = gguf.GGUFValueType.get_type(value)
            writer.kv_data[0][key] = gguf.gguf_writer.GGUFValue(value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_rope(writer: gguf.GGUFWriter, config: Any, head_dim: int) -> None:
    scaling = config.get("rope_scaling")
    parameters = config.get("rope_parameters")
    if scaling is not None:
        # Converters store Llama 3's scaling as divisors of each pair's frequency.
        frequencies = config["rope_theta"] ** (-np.arange(0, head_dim, 2) / head_dim)
        turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((turns - low) / (high - low), 0, 1)
        writer.add_tensor(
            "rope_freqs.weight", (1 / (kept + (1 - kept) / scaling["factor"])).astype(np.float32)
        )
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        parameters = parameters["full_attention"]
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    if config["model_type"] == "qwen3_5_text":
        writer.add_rope_dimension_count(head_dim // 4)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
    if parameters is not None:
        writer.add_rope_freq_base(parameters["rope_theta"])
        if "factor" in parameters:
            writer.add_rope_scaling_factor(parameters["factor"])
    else:
        writer.add_rope_freq_base(config["rope_theta"])


def _add_delta_rule(writer: gguf.GGUFWriter, config: Any) -> None:
    heads = config["linear_num_value_heads"]
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_inner_size(heads * config["linear_value_head_dim"])
    kinds = config.get("layer_types", ["linear_attention"] * 3 + ["full_attention"])
    writer.add_full_attention_interval(kinds.index("full_attention") + 1)


def _of_delta_rule(tensor: str, values: np.ndarray, config: Any) -> np.ndarray:
    """Rates negative and not in logarithms, and value heads in turns of the key heads."""
    heads, key_heads = (config[f"linear_num_{each}_heads"] for each in ("value", "key"))
    keys = 2 * key_heads * config["linear_key_head_dim"]
    grouped = np.arange(heads).reshape(key_heads, -1)
    tiled = grouped.T.reshape(-1)
    width = config["linear_value_head_dim"]
    columns = (tiled[:, None] * width + np.arange(width)).reshape(-1)
    behind_keys = np.concatenate([np.arange(keys), keys + columns])
    stored: np.ndarray
    match tensor.rpartition(".linear_attn.")[2]:
        case "A_log":
            stored = -np.exp(values[tiled])
        case "dt_bias" | "in_proj_a.weight" | "in_proj_b.weight":
            stored = values[tiled]
        case "in_proj_z.weight":
            stored = values[columns]
        case "in_proj_qkv.weight":
            stored = values[behind_keys]
        case "conv1d.weight":
            stored = values[behind_keys, 0]
        case "out_proj.weight":
            stored = values[:, columns]
        case _:
            stored = values
    return stored


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Each head's pairs (j, j + n) of rows, or of a bias' values, moved to (2j, 2j + 1)."""
    by_half = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return by_half.swapaxes(1, 2).reshape(rows.shape)
