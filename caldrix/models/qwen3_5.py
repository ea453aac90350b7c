"""Family qwen3_5, its text part: gated delta rule in most layers, gated attention in every fourth.

Norms multiply by one plus their weight, except the delta rule's own and in GGUF files, where the
one is added already. Only a part of each attention head is rotated.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import evolve, frozen

from caldrix.models.builder import ProgramBuilder
from caldrix.models.decoder import (
    ATTENTION_PROJECTIONS,
    EMBEDDING,
    GGUF_NAMES,
    Attention,
    Dimensions,
    attention,
    biased_projections,
    gated_mlp,
    head,
)
from caldrix.models.family import Family
from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.models.program import Activation, Program, Value
from caldrix.models.rope import frequencies_from_gguf, partial_frequencies
from caldrix.models.tensors import NamedTensors
from caldrix.models.windows import layer_types

MODEL_TYPES = frozenset({"qwen3_5_text", "qwen3_5"})
"""The text model by itself, and within one that sees."""

_LINEAR = "linear_attention"
_FULL = "full_attention"
_INTERVAL = 4
_ROTARY_FACTOR = 0.25
_UNIT_EPS = 1e-6
"""What keeps a query or key of zeros from a division by zero; a constant of the models' code."""

# Published config.json files may leave out what their authors' code has as its default.
_DEFAULTS: Mapping[str, object] = {
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


@frozen
class _Mixer:
    """The sizes of the layers with the delta rule, and how a file stores their weights."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    taps: int
    published: bool
    """As config.json's checkpoints do, not GGUF files."""

    @property
    def keys(self) -> int:
        return self.key_heads * self.key_dim

    @property
    def values(self) -> int:
        return self.heads * self.value_dim

    @property
    def channels(self) -> int:
        """Of the convolution: queries, keys and values."""
        return 2 * self.keys + self.values

    @property
    def convolution(self) -> tuple[int, ...]:
        """The shape of its weight."""
        return (self.channels, *((1,) if self.published else ()), self.taps)


@frozen
class _Settings:
    full: tuple[bool, ...]
    """For each layer, whether it attends."""
    attention: Attention
    mixer: _Mixer
    norm_offset: float
    biased: frozenset[str]


def _program(dims: Dimensions, settings: _Settings) -> Program:
    b = dims.builder("qwen3_5")
    x = b.embed(EMBEDDING, dims.hidden)
    for index, full in enumerate(settings.full):
        layer = f"model.layers.{index}"

        def norm(x: Value, name: str, layer: str = layer) -> Value:
            weight = f"{layer}.{name}_layernorm.weight"
            return b.rms_norm(x, weight, eps=dims.eps, offset=settings.norm_offset)

        h = norm(x, "input")
        if full:
            mixed = attention(b, h, layer, dims, settings.attention, biased=settings.biased)
        else:
            mixed = _delta(b, h, layer, dims, settings.mixer)
        x = b.add(x, mixed)
        x = b.add(x, gated_mlp(b, norm(x, "post_attention"), layer, dims, Activation.SILU))
    return head(b, x, dims, norm_offset=settings.norm_offset)


def _delta(b: ProgramBuilder, x: Value, layer: str, dims: Dimensions, mixer: _Mixer) -> Value:
    """Projections, convolution, the delta rule, a norm of each head and its gate."""

    def project(part: str, width: int) -> Value:
        return b.linear(x, f"{layer}.linear_attn.in_proj_{part}.weight", width)

    u, z = project("qkv", mixer.channels), project("z", mixer.values)
    strength, decay = project("b", mixer.heads), project("a", mixer.heads)
    convolution = f"{layer}.linear_attn.conv1d.weight"
    u = b.convolve(u, convolution, mixer.convolution, activation=Activation.SILU)
    q, k = b.part(u, 0, mixer.keys), b.part(u, mixer.keys, mixer.keys)
    v = b.part(u, 2 * mixer.keys, mixer.values)
    y = b.delta_rule(
        (q, k, v),
        decay,
        strength,
        rate=f"{layer}.linear_attn.A_log",
        rate_bias=f"{layer}.linear_attn.dt_bias",
        key_heads=mixer.key_heads,
        scale=mixer.key_dim**-0.5,
        eps=_UNIT_EPS,
        in_log=mixer.published,
        tiled=not mixer.published,
    )
    y = b.rms_norm(y, f"{layer}.linear_attn.norm.weight", eps=dims.eps, groups=mixer.heads)
    y = b.gate(z, y, Activation.SILU)
    return b.linear(y, f"{layer}.linear_attn.out_proj.weight", dims.hidden)


def _from_config(config: Fields, tensors: NamedTensors) -> Program:
    text = _text_config(config)
    text.require("model_type", *MODEL_TYPES)
    text.require("hidden_act", "silu")
    text.require("attn_output_gate", True)
    dims = Dimensions.from_config(text, tensors, attending=False)
    mixer = _Mixer(
        key_heads=text.integer("linear_num_key_heads"),
        heads=text.integer("linear_num_value_heads"),
        key_dim=text.integer("linear_key_head_dim"),
        value_dim=text.integer("linear_value_head_dim"),
        taps=text.integer("linear_conv_kernel_dim"),
        published=True,
    )
    if "layer_types" in text:
        kinds = layer_types(text, dims.layers, known=(_LINEAR, _FULL))
        full = tuple(kind == _FULL for kind in kinds)
    else:
        full = _every(text.integer("full_attention_interval", _INTERVAL), dims.layers)
    _hold_against(tensors, text.where, dims, mixer, full)
    settings = _Settings(
        full=full,
        attention=_attention(
            dims, partial_frequencies(text, dims.head_dim, factor=_ROTARY_FACTOR), offset=1.0
        ),
        mixer=mixer,
        norm_offset=1.0,
        biased=ATTENTION_PROJECTIONS if text.flag("attention_bias", False) else frozenset(),
    )
    return _program(dims, settings)


def _text_config(config: Fields) -> Fields:
    """The text model's part, which may be all of it, with its defaults."""
    if "text_config" not in config:
        return config.with_defaults(_DEFAULTS)
    text = config.section("text_config")
    tied = "tie_word_embeddings"
    if tied in config and tied in text and config.flag(tied) != text.flag(tied):
        raise UnsupportedModel(
            f"{config.where}: {tied} is {config.flag(tied)}, and {text.flag(tied)} in text_config; "
            "whether the model has an output matrix of its own can't be told"
        )
    return text.with_defaults({**_DEFAULTS, tied: config.flag(tied, False)})


def _from_gguf(metadata: Fields, tensors: NamedTensors) -> Program:
    dims = _without_guessing_layers(
        Dimensions.from_gguf(metadata, tensors, attending=False), metadata, tensors
    )
    heads = metadata.integer("ssm.time_step_rank")
    values = metadata.integer("ssm.inner_size")
    if values % heads:
        raise UnsupportedModel(
            f"{metadata.where}: {metadata.prefix}ssm.inner_size {values} does not divide into "
            f"{heads} heads"
        )
    mixer = _Mixer(
        key_heads=metadata.integer("ssm.group_count"),
        heads=heads,
        key_dim=metadata.integer("ssm.state_size"),
        value_dim=values // heads,
        taps=metadata.integer("ssm.conv_kernel"),
        published=False,
    )
    full = _every(metadata.integer("full_attention_interval", _INTERVAL), dims.layers)
    _hold_against(tensors, metadata.where, dims, mixer, full)
    turned = metadata.integer("rope.dimension_count", dims.head_dim // 4)
    if turned % 2 or turned > dims.head_dim:
        raise UnsupportedModel(
            f"{metadata.where}: {metadata.prefix}rope.dimension_count {turned} is no number of "
            f"dimensions that turn in pairs, of {dims.head_dim}"
        )
    settings = _Settings(
        full=full,
        attention=_attention(dims, frequencies_from_gguf(metadata, turned, None), offset=0.0),
        mixer=mixer,
        norm_offset=0.0,
        biased=biased_projections(tensors, full.index(True)),
    )
    return _program(dims, settings)


def _without_guessing_layers(
    dims: Dimensions, metadata: Fields, tensors: NamedTensors
) -> Dimensions:
    """GGUF files count the layers that guess a token ahead, which are not served, as the last."""
    guessing = metadata.integer("nextn_predict_layers", 0, least=0)
    if guessing >= dims.layers:
        raise UnsupportedModel(
            f"{metadata.where}: {metadata.prefix}nextn_predict_layers {guessing} leaves none of "
            f"{dims.layers} layers"
        )
    for layer in range(dims.layers - guessing, dims.layers):
        tensors.leave_out(f"blk.{layer}.")
    return evolve(dims, layers=dims.layers - guessing)


def _attention(dims: Dimensions, frequencies: tuple[float, ...], *, offset: float) -> Attention:
    return Attention(
        frequencies=frequencies,
        scale=dims.head_dim**-0.5,
        head_norms=True,
        norm_offset=offset,
        gated=True,
    )


def _every(interval: int, layers: int) -> tuple[bool, ...]:
    """Every ``interval``-th layer attends."""
    return tuple((layer + 1) % interval == 0 for layer in range(layers))


def _hold_against(
    tensors: NamedTensors, where: str, dims: Dimensions, mixer: _Mixer, full: tuple[bool, ...]
) -> None:
    """Refuses sizes that the first layer of each kind doesn't have, before a program is built."""
    if mixer.heads % mixer.key_heads:
        raise UnsupportedModel(
            f"{where}: {mixer.heads} value heads of linear attention can't share "
            f"{mixer.key_heads} key heads evenly"
        )
    if True not in full:
        raise UnsupportedModel(
            f"{where}: none of its {dims.layers} layers is one of full attention, and models "
            "without any are not supported"
        )
    if False in full:
        layer = f"model.layers.{full.index(False)}.linear_attn"
        tensors.read_shaped(f"{layer}.in_proj_qkv.weight", (mixer.channels, dims.hidden))
        tensors.read_shaped(f"{layer}.conv1d.weight", mixer.convolution)
    layer = f"model.layers.{full.index(True)}.self_attn"
    # Each query head has a gate beside it.
    for part, heads in (("q", 2 * dims.heads), ("k", dims.kv_heads)):
        shape = (heads * dims.head_dim, dims.hidden)
        tensors.read_shaped(f"{layer}.{part}_proj.weight", shape)


FAMILY = Family(
    name="qwen3_5",
    model_types=MODEL_TYPES,
    architectures=frozenset({"qwen35"}),
    from_config=_from_config,
    from_gguf=_from_gguf,
    gguf_names={
        **GGUF_NAMES,
        "post_attention_layernorm": "post_attention_norm",
        "linear_attn.in_proj_qkv": "attn_qkv",
        "linear_attn.in_proj_z": "attn_gate",
        "linear_attn.in_proj_b": "ssm_beta",
        "linear_attn.in_proj_a": "ssm_alpha",
        "linear_attn.conv1d": "ssm_conv1d",
        "linear_attn.norm": "ssm_norm",
        "linear_attn.out_proj": "ssm_out",
        "linear_attn.A_log": "ssm_a",
        "linear_attn.dt_bias": "ssm_dt.bias",
    },
    # The vision tower, as safetensors and as single GGUF files name it.
    unserved=("model.visual.", "visual.", "v.", "mm."),
)
