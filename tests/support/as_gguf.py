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
    changed: Mapping[str, int | float | str | None] | None = None,
    added: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """A GGUF file with a tiny checkpoint's weights in float32; returns its path.

    ``changed`` sets metadata keys, or with None leaves them out; ``added`` are tensors besides.
    """
    config = tiny.CONFIGS[name]
    architecture = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    family = next(family for family in FAMILIES if family.name == architecture)
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
    _add_rope(writer, config, head_dim)
    for tensor, values in tiny.weights(name).items():
        stored = values
        if architecture == "llama" and (".q_proj." in tensor or ".k_proj." in tensor):
            stored = _interleaved(values, heads if ".q_proj" in tensor else kv_heads)
        if architecture == "gemma3" and "norm" in tensor:
            stored = values + 1
        writer.add_tensor(gguf_name(tensor, family.gguf_names), np.ascontiguousarray(stored))
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
    if "layer_types" in config:
        writer.add_sliding_window(config["sliding_window"])
        parameters = parameters["full_attention"]
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    if parameters is not None:
        writer.add_rope_freq_base(parameters["rope_theta"])
        writer.add_rope_scaling_factor(parameters["factor"])
    else:
        writer.add_rope_freq_base(config["rope_theta"])


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Each head's pairs (j, j + n) of rows, or of a bias' values, moved to (2j, 2j + 1)."""
    by_half = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return by_half.swapaxes(1, 2).reshape(rows.shape)
