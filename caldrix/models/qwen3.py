"""Family qwen3: Llama's shape with a norm on each query and key head."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from caldrix.models.decoder import GGUF_NAMES, Attention, Dimensions, pre_norm_decoder
from caldrix.models.family import Family
from caldrix.models.fields import Fields
from caldrix.models.program import Program
from caldrix.models.rope import frequencies_from_config, frequencies_from_gguf
from caldrix.models.windows import layer_windows
from caldrix.weights.tensor import Tensor

_HEAD_DIM = 128


def _from_config(config: Fields) -> Program:
    config.require("hidden_act", "silu")
    dims = Dimensions.from_config(config, head_dim=_HEAD_DIM)
    biased = config.flag("attention_bias", False)
    how = Attention(
        frequencies=frequencies_from_config(config, dims.head_dim),
        scale=dims.head_dim**-0.5,
        qkv_bias=biased,
        out_bias=biased,
        head_norms=True,
    )
    windows = layer_windows(config, dims.layers)
    return pre_norm_decoder(
        "qwen3", dims, tuple(attrs.evolve(how, window=window) for window in windows)
    )


def _from_gguf(metadata: Fields, tensors: Mapping[str, Tensor]) -> Program:
    dims = Dimensions.from_gguf(metadata, tensors)
    how = Attention(
        frequencies=frequencies_from_gguf(metadata, dims.head_dim, None),
        scale=dims.head_dim**-0.5,
        head_norms=True,
    )
    return pre_norm_decoder("qwen3", dims, (how,) * dims.layers)


FAMILY = Family(
    name="qwen3",
    model_types=frozenset({"qwen3"}),
    architectures=frozenset({"qwen3"}),
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_names=GGUF_NAMES,
)
