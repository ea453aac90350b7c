"""Family qwen2: Llama's shape with biased query, key and value projections."""

from __future__ import annotations

import attrs

from caldrix.models.decoder import (
    GGUF_NAMES,
    QKV_PROJECTIONS,
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
from caldrix.models.windows import layer_windows


def _from_config(config: Fields, tensors: NamedTensors) -> Program:
    config.require("hidden_act", "silu")
    dims = Dimensions.from_config(config, tensors)
    how = Attention(
        frequencies=frequencies_from_config(config, dims.head_dim),
        scale=dims.head_dim**-0.5,
    )
    of_layers = tuple(
        attrs.evolve(how, window=window) for window in layer_windows(config, dims.layers)
    )
    return pre_norm_decoder("qwen2", dims, of_layers, biased=QKV_PROJECTIONS)


def _from_gguf(metadata: Fields, tensors: NamedTensors) -> Program:
    dims = Dimensions.from_gguf(metadata, tensors)
    how = Attention(
        frequencies=frequencies_from_gguf(metadata, dims.head_dim, None),
        scale=dims.head_dim**-0.5,
    )
    biased = QKV_PROJECTIONS | biased_projections(tensors)
    return pre_norm_decoder("qwen2", dims, (how,) * dims.layers, biased=biased)


FAMILY = Family(
    name="qwen2",
    model_types=frozenset({"qwen2"}),
    architectures=frozenset({"qwen2"}),
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_names=GGUF_NAMES,
)
