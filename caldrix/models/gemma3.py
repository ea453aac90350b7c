"""Family gemma3, its text part: norms around each block, two ropes, sliding windows.

Most layers attend to a window with a rope of their own base; every sixth attends to everything.
The embedding is scaled by the square root of its width, and norms multiply by one plus their
weight, except in GGUF files, where the one is added already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from caldrix.models.decoder import (
    EMBEDDING,
    GGUF_NAMES,
    Attention,
    Dimensions,
    attention,
    gated_mlp,
    head,
)
from caldrix.models.family import Family
from caldrix.models.fields import Fields
from caldrix.models.program import Activation, Program, Value
from caldrix.models.rope import (
    base_frequencies,
    frequencies_from_gguf,
    scaled_frequencies,
    theta_of,
)
from caldrix.models.tensors import NamedTensors
from caldrix.models.windows import is_sliding, layer_types

_GLOBAL_THETA = 1_000_000.0
_LOCAL_THETA = 10_000.0
_PATTERN = 6
_LAYERS_OF_27B = 62

# Published config.json files leave out what their authors' code has as its default.
_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


@frozen
class _Settings:
    sliding: tuple[bool, ...]
    window: int
    global_frequencies: tuple[float, ...]
    local_frequencies: tuple[float, ...]
    scale: float
    norm_offset: float

    def attention(self, layer: int) -> Attention:
        sliding = self.sliding[layer]
        return Attention(
            frequencies=self.local_frequencies if sliding else self.global_frequencies,
            scale=self.scale,
            window=self.window if sliding else None,
            head_norms=True,
            norm_offset=self.norm_offset,
        )


def _program(dims: Dimensions, settings: _Settings) -> Program:
    b = dims.builder("gemma3")
    x = b.embed(EMBEDDING, dims.hidden, scale=math.sqrt(dims.hidden))
    for index in range(dims.layers):
        layer = f"model.layers.{index}"

        def norm(x: Value, name: str, layer: str = layer) -> Value:
            weight = f"{layer}.{name}_layernorm.weight"
            return b.rms_norm(x, weight, eps=dims.eps, offset=settings.norm_offset)

        h = attention(b, norm(x, "input"), layer, dims, settings.attention(index))
        x = b.add(x, norm(h, "post_attention"))
        h = gated_mlp(b, norm(x, "pre_feedforward"), layer, dims, Activation.GELU_TANH)
        x = b.add(x, norm(h, "post_feedforward"))
    return head(b, x, dims, norm_offset=settings.norm_offset)


def _from_config(config: Fields, tensors: NamedTensors) -> Program:
    text = config.section("text_config") if "text_config" in config else config
    text = text.with_defaults(_DEFAULTS)
    text.require("hidden_activation", "gelu_pytorch_tanh")
    text.require("attention_bias", False)
    text.require("attn_logit_softcapping")
    text.require("final_logit_softcapping")
    text.require("use_bidirectional_attention", False)
    dims = Dimensions.from_config(text, tensors)
    if "layer_types" in text:
        sliding = tuple(map(is_sliding, layer_types(text, dims.layers)))
    else:
        sliding = _sliding(dims.layers, text.integer("sliding_window_pattern", _PATTERN))
    global_frequencies, local_frequencies = _frequencies(text, dims.head_dim)
    settings = _Settings(
        sliding=sliding,
        window=text.integer("sliding_window"),
        global_frequencies=global_frequencies,
        local_frequencies=local_frequencies,
        scale=text.number("query_pre_attn_scalar") ** -0.5,
        norm_offset=1.0,
    )
    return _program(dims, settings)


def _frequencies(text: Fields, head_dim: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Those of the global and of the sliding layers, from either form of config.json."""
    if "rope_parameters" in text:
        by_type = text.section("rope_parameters")
        return (
            scaled_frequencies(by_type.section("full_attention"), head_dim, theta=_GLOBAL_THETA),
            scaled_frequencies(by_type.section("sliding_attention"), head_dim, theta=_LOCAL_THETA),
        )
    theta = theta_of(text, "rope_theta", _GLOBAL_THETA)
    local = base_frequencies(theta_of(text, "rope_local_base_freq", _LOCAL_THETA), head_dim)
    if "rope_scaling" in text:
        return scaled_frequencies(text.section("rope_scaling"), head_dim, theta=theta), local
    return base_frequencies(theta, head_dim), local


def _from_gguf(metadata: Fields, tensors: NamedTensors) -> Program:
    dims = Dimensions.from_gguf(metadata, tensors)
    # The file doesn't say query_pre_attn_scalar; of the published sizes only 27B differs.
    queries = dims.hidden / dims.heads if dims.layers == _LAYERS_OF_27B else dims.head_dim
    local_theta = theta_of(metadata, "rope.freq_base_swa", _LOCAL_THETA)
    settings = _Settings(
        sliding=_sliding(dims.layers, _PATTERN),
        window=metadata.integer("attention.sliding_window"),
        global_frequencies=frequencies_from_gguf(
            metadata, dims.head_dim, None, theta=_GLOBAL_THETA
        ),
        local_frequencies=base_frequencies(local_theta, dims.head_dim),
        scale=queries**-0.5,
        norm_offset=0.0,
    )
    return _program(dims, settings)


def _sliding(layers: int, pattern: int) -> tuple[bool, ...]:
    """Every ``pattern``-th layer attends to everything, the others to a window."""
    return tuple((layer + 1) % pattern != 0 for layer in range(layers))


FAMILY = Family(
    name="gemma3",
    model_types=frozenset({"gemma3_text", "gemma3"}),
    architectures=frozenset({"gemma3"}),
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_names={
        **GGUF_NAMES,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
    # The vision tower and its projector, as safetensors and as single GGUF files name them.
    unserved=(
        "vision_tower.",
        "model.vision_tower.",
        "multi_modal_projector.",
        "model.multi_modal_projector.",
        "v.",
        "mm.",
    ),
)
