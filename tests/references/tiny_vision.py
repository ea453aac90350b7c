"""Tiny random checkpoints with a vision tower, in SmolVLM's published layout, and what they see.

As in `tiny`, the script that captures reference values and the tests both build them here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.references import tiny

IMAGE_TOKEN = 90
CHECKED_POSITIONS = (0, 3, 4, 7, 8, 20, 39)
SIDES = range(1, 65)
"""Patches a side, for which the reference's positions are captured."""

CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "idefics3": {
        "model_type": "idefics3",
        "architectures": ["Idefics3ForConditionalGeneration"],
        "image_token_id": IMAGE_TOKEN,
        "scale_factor": 2,
        "tie_word_embeddings": False,
        "text_config": {
            **tiny.CONFIGS["llama"],
            "architectures": ["VLlama3ForCausalLM"],
            "qk_layer_norms": False,
            "rope_interleaved": False,
            "use_resampler": False,
            "pixel_shuffle_factor": 2,
            "pad_token_id": 2,
        },
        "vision_config": {
            "model_type": "idefics3_vision",
            "hidden_size": 32,
            "intermediate_size": 56,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 32,
            "patch_size": 8,
            "max_image_size": {"longest_edge": 32},
            "size": {"longest_edge": 128},
            "use_base_siglip": True,
        },
        "vocab_size": 96,
    },
    # A side that patches don't fill, heads of 20 dimensions, and all that may be left out.
    "smolvlm": {
        "model_type": "smolvlm",
        "architectures": ["SmolVLMForConditionalGeneration"],
        "image_token_id": IMAGE_TOKEN,
        "scale_factor": 3,
        "tie_word_embeddings": True,
        "text_config": {
            key: value
            for key, value in tiny.CONFIGS["llama-biased"].items()
            if key != "tie_word_embeddings"
        }
        | {"pad_token_id": 2},
        "vision_config": {
            "model_type": "smolvlm_vision",
            "hidden_size": 40,
            "num_attention_heads": 2,
            "image_size": 38,
            "patch_size": 4,
        },
    },
}
_LEFT_OUT = {"intermediate_size": 3072, "num_hidden_layers": 12}


def weights(name: str) -> dict[str, np.ndarray]:
    """The checkpoint's tensors under their published names, float32."""
    return weights_of(CONFIGS[name], seed=100 + sorted(CONFIGS).index(name))


def weights_of(config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Random tensors for any configuration, under their published names, float32."""
    text = {**config["text_config"], "tie_word_embeddings": config["tie_word_embeddings"]}
    tensors = {
        key.replace("model.", "model.text_model.", 1): value
        for key, value in tiny.weights_of(text, seed).items()
    }
    return tensors | _tower(config, np.random.Generator(np.random.PCG64(seed)))


def _tower(config: Mapping[str, Any], random: np.random.Generator) -> dict[str, np.ndarray]:
    vision = {**_LEFT_OUT, **config["vision_config"]}
    hidden, inner, patch = (
        vision[key] for key in ("hidden_size", "intermediate_size", "patch_size")
    )
    tensors: dict[str, np.ndarray] = {}

    def normal(*shape: int, spread: float, centre: float = 0.0) -> np.ndarray:
        return (centre + spread * random.standard_normal(shape)).astype(np.float32)

    def projection(part: str, rows: int, columns: int, *, shape: tuple[int, ...] = ()) -> None:
        values = normal(rows, columns, spread=1.2 * columns**-0.5)
        tensors[f"{part}.weight"] = values.reshape(shape or values.shape)
        tensors[f"{part}.bias"] = normal(rows, spread=0.2)

    def norm(part: str) -> None:
        tensors[f"{part}.weight"] = normal(hidden, spread=0.2, centre=1.0)
        tensors[f"{part}.bias"] = normal(hidden, spread=0.2)

    tower = "model.vision_model"
    convolution = (hidden, 3, patch, patch)
    projection(f"{tower}.embeddings.patch_embedding", hidden, 3 * patch**2, shape=convolution)
    count = (vision["image_size"] // patch) ** 2
    positions = normal(count, hidden, spread=0.5)
    tensors[f"{tower}.embeddings.position_embedding.weight"] = positions
    for index in range(vision["num_hidden_layers"]):
        layer = f"{tower}.encoder.layers.{index}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            projection(f"{layer}.self_attn.{part}", hidden, hidden)
        projection(f"{layer}.mlp.fc1", inner, hidden)
        projection(f"{layer}.mlp.fc2", hidden, inner)
        norm(f"{layer}.layer_norm1")
        norm(f"{layer}.layer_norm2")
    norm(f"{tower}.post_layernorm")
    wide = hidden * config["scale_factor"] ** 2
    out = config["text_config"]["hidden_size"]
    connector = normal(out, wide, spread=wide**-0.5)
    tensors["model.connector.modality_projection.proj.weight"] = connector
    return tensors


def tiles(name: str, count: int = 2) -> np.ndarray:
    """Tiles of one picture, as the processor normalises pixels: ``[count, 3, side, side]``."""
    side = CONFIGS[name]["vision_config"]["image_size"]
    values = np.random.Generator(np.random.PCG64(7)).uniform(-1, 1, (count, 3, side, side))
    return values.astype(np.float32)


def prompt(name: str) -> tuple[int, ...]:
    """A prompt of 40 tokens around two tiles; the rest of them text."""
    config = CONFIGS[name]
    vision = config["vision_config"]
    each: int = (vision["image_size"] // vision["patch_size"] // config["scale_factor"]) ** 2
    text = tuple(token % IMAGE_TOKEN for token in tiny.PROMPT)
    image = (IMAGE_TOKEN,) * each
    tokens: tuple[int, ...] = text[:4] + image + text[4:8] + image + text[8:]
    return tokens[:40]


def write_checkpoint(name: str, directory: Path) -> Path:
    """Writes config.json and model.safetensors; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIGS[name]))
    save_file(weights(name), directory / "model.safetensors", metadata={"format": "pt"})
    return directory
