"""Family llama: Llama 2 and 3, SmolLM2, and what else has their shape."""

from __future__ import annotations

from caldrix.models.decoder import (
    ATTENTION_PROJECTIONS,
    GGUF_NAMES,
    MLP_PROJECTIONS,
    Attention,
    Dimensions,
    biased_projections,
    pre_norm_decoder,
)
from caldrix.models.family import Family
from caldrix.models.fields import Fields
from caldrix.models.program import Program
from caldrix.models.rope import frequencies_from_config, frequencies_from_gguf
from caldrix.models.tensors import NamedTensors

_ROPE_FACTORS = "rope_freqs.weight"


def _from_config(config: Fields, tensors: NamedTensors) -> Program:
    return text_program("llama", config, tensors)


def text_program(family: str, config: Fields, tensors: NamedTensors) -> Program:
    """A Llama as config.json describes it; other families have one inside.

    Raises UnsupportedModel.
    """
    config.require("hidden_act", "silu")
    dims = Dimensions.from_config(config, tensors)
    how = Attention(
        frequencies=frequencies_from_config(config, dims.head_dim),
        scale=dims.head_dim**-0.5,
    )
    biased: frozenset[str] = frozenset()
    if config.flag("attention_bias", False):
        biased |= ATTENTION_PROJECTIONS
    if config.flag("mlp_bias", False):
        biased |= MLP_PROJECTIONS
    return pre_norm_decoder(family, dims, (how,) * dims.layers, biased=biased)


def _from_gguf(metadata: Fields, tensors: NamedTensors) -> Program:
    dims = Dimensions.from_gguf(metadata, tensors)
    factors: list[float] | None = None
    if _ROPE_FACTORS in tensors:
        shape = (dims.head_dim // 2,)
        factors = tensors.read_shaped(_ROPE_FACTORS, shape).to_float32().tolist()
    how = Attention(
        frequencies=frequencies_from_gguf(metadata, dims.head_dim, factors),
        scale=dims.head_dim**-0.5,
        interleaved=True,
    )
    biased = biased_projections(tensors)
    return pre_norm_decoder("llama", dims, (how,) * dims.layers, biased=biased)


FAMILY = Family(
    name="llama",
    model_types=frozenset({"llama"}),
    architectures=frozenset({"llama"}),
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_names={**GGUF_NAMES, _ROPE_FACTORS: _ROPE_FACTORS},
)
