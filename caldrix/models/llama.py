"""Family llama: Llama 2 and 3, SmolLM2, and what else has their shape."""

from __future__ import annotations

from collections.abc import Mapping

from caldrix.models.decoder import GGUF_NAMES, Attention, Dimensions, pre_norm_decoder
from caldrix.models.family import Family
from caldrix.models.fields import Fields
from caldrix.models.program import Program
from caldrix.models.rope import frequencies_from_config, frequencies_from_gguf
from caldrix.weights.tensor import Tensor

_ROPE_FACTORS = "rope_freqs.weight"


def _from_config(config: Fields) -> Program:
    config.require("hidden_act", "silu")
    dims = Dimensions.from_config(config)
    biased = config.flag("attention_bias", False)
    how = Attention(
        frequencies=frequencies_from_config(config, dims.head_dim),
        scale=dims.head_dim**-0.5,
        qkv_bias=biased,
        out_bias=biased,
    )
    mlp_biased = config.flag("mlp_bias", False)
    return pre_norm_decoder("llama", dims, (how,) * dims.layers, mlp_biased=mlp_biased)


def _from_gguf(metadata: Fields, tensors: Mapping[str, Tensor]) -> Program:
    dims = Dimensions.from_gguf(metadata, tensors)
    factors = tensors[_ROPE_FACTORS].to_float32().ravel() if _ROPE_FACTORS in tensors else None
    how = Attention(
        frequencies=frequencies_from_gguf(
            metadata, dims.head_dim, None if factors is None else factors.tolist()
        ),
        scale=dims.head_dim**-0.5,
        interleaved=True,
    )
    return pre_norm_decoder("llama", dims, (how,) * dims.layers)


FAMILY = Family(
    name="llama",
    model_types=frozenset({"llama"}),
    architectures=frozenset({"llama"}),
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_names=GGUF_NAMES,
)
