"""What decoder-only families share: their sizes, and the blocks they are built of.

A family names its weights as its published safetensors do (``model.layers.0.self_attn...``); for
GGUF files a table translates.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from attrs import frozen

from caldrix.models.builder import ProgramBuilder
from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.models.program import Activation, KvCache, Program, Value
from caldrix.models.tensors import NamedTensors

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"

GGUF_NAMES: Mapping[str, str] = {
    EMBEDDING: "token_embd.weight",
    FINAL_NORM: "output_norm.weight",
    HEAD: "output.weight",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Names in GGUF files: whole ones, and those of a layer's parts without their ends, or with them
where they differ."""

QKV_PROJECTIONS = frozenset({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
ATTENTION_PROJECTIONS = QKV_PROJECTIONS | {"self_attn.o_proj"}
MLP_PROJECTIONS = frozenset({"mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"})

_DEFAULT_EPS = 1e-6


def _first_norm(layer: int) -> str:
    return f"model.layers.{layer}.input_layernorm.weight"


def biased_projections(tensors: NamedTensors, layer: int = 0) -> frozenset[str]:
    """The projections that have a bias, going by one layer: GGUF metadata doesn't say."""
    return frozenset(
        part
        for part in ATTENTION_PROJECTIONS | MLP_PROJECTIONS
        if f"model.layers.{layer}.{part}.bias" in tensors
    )


@frozen
class Dimensions:
    """The sizes every decoder has."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    eps: float
    tied: bool
    """Whether the embedding is the output matrix too."""

    @classmethod
    def from_config(
        cls,
        config: Fields,
        tensors: NamedTensors,
        *,
        head_dim: int | None = None,
        attending: bool = True,
    ) -> Dimensions:
        """From config.json, held against the tensors; ``head_dim`` is the family's default.

        Without ``attending`` the first layer is not taken for one of plain attention.
        """
        config.require("num_experts", 0)
        config.require("num_local_experts", 0)
        hidden = config.integer("hidden_size")
        heads = config.integer("num_attention_heads")
        dims = cls(
            hidden=hidden,
            intermediate=config.integer("intermediate_size"),
            layers=config.integer("num_hidden_layers"),
            heads=heads,
            kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=config.integer("head_dim", head_dim or max(1, hidden // heads)),
            vocab=config.integer("vocab_size"),
            max_context=config.integer("max_position_embeddings"),
            eps=config.number("rms_norm_eps", _DEFAULT_EPS),
            tied=config.flag("tie_word_embeddings", False),
        )
        dims.hold_against(tensors, config.where, attending=attending)
        return dims

    @classmethod
    def from_gguf(
        cls, metadata: Fields, tensors: NamedTensors, *, attending: bool = True
    ) -> Dimensions:
        """From GGUF metadata, held against the tensors; the vocabulary is the embedding's.

        ``attending`` is as for `from_config`.
        """
        metadata.require("expert_count", 0)
        hidden = metadata.integer("embedding_length")
        heads = metadata.integer("attention.head_count")
        head_dim = metadata.integer("attention.key_length", max(1, hidden // heads))
        metadata.require("attention.value_length", head_dim)
        dims = cls(
            hidden=hidden,
            intermediate=metadata.integer("feed_forward_length"),
            layers=metadata.integer("block_count"),
            heads=heads,
            kv_heads=metadata.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            vocab=tensors.read(EMBEDDING).shape[0],
            max_context=metadata.integer("context_length"),
            eps=metadata.number("attention.layer_norm_rms_epsilon"),
            tied=HEAD not in tensors,
        )
        dims.hold_against(tensors, metadata.where, attending=attending)
        return dims

    def hold_against(self, tensors: NamedTensors, where: str, *, attending: bool = True) -> None:
        """Refuses sizes that contradict each other or the tensors, before a program is built.

        What a program's own size depends on is checked here; the shapes of all its weights are
        checked once it is there. ``where`` names the file with the sizes. Without ``attending`` the
        family checks its layers' projections itself. Raises UnsupportedModel.
        """
        if self.heads % self.kv_heads:
            raise UnsupportedModel(
                f"{where}: {self.heads} attention heads can't share {self.kv_heads} key and value "
                "heads evenly"
            )
        if self.head_dim % 2:
            raise UnsupportedModel(f"{where}: heads of {self.head_dim} dimensions can't be rotated")
        tensors.read_shaped(EMBEDDING, (self.vocab, self.hidden))
        for part, heads in (("q", self.heads), ("k", self.kv_heads)) if attending else ():
            name = f"model.layers.0.self_attn.{part}_proj.weight"
            tensors.read_shaped(name, (heads * self.head_dim, self.hidden))
        present = next(layer for layer in itertools.count() if _first_norm(layer) not in tensors)
        if present != self.layers:
            raise UnsupportedModel(
                f"{where}: it describes {self.layers} layers, but the tensors are of {present}"
            )

    def builder(self, family: str) -> ProgramBuilder:
        """A builder for a program of these sizes."""
        return ProgramBuilder(family, vocab_size=self.vocab, max_context=self.max_context)


@frozen
class Attention:
    """How a family's layer attends, beyond its sizes."""

    frequencies: tuple[float, ...]
    scale: float
    interleaved: bool = False
    """Rope pairs lie side by side, as GGUF stores Llama's query and key rows."""
    window: int | None = None
    head_norms: bool = False
    """Queries and keys are normalised, each head by itself, before the rope."""
    norm_offset: float = 0.0
    gated: bool = False
    """Each head of the query projection is followed by as wide a gate, through whose sigmoid the
    head's result goes."""


def attention(
    b: ProgramBuilder,
    x: Value,
    layer: str,
    dims: Dimensions,
    how: Attention,
    *,
    biased: frozenset[str] = frozenset(),
) -> Value:
    """Projections, head norms, rope, attention and the output projection."""

    def project(x: Value, part: str, width: int) -> Value:
        return _project(b, x, layer, f"self_attn.{part}_proj", width, biased)

    def positioned(y: Value, part: str, heads: int) -> Value:
        if how.head_norms:
            norm = f"{layer}.self_attn.{part}_norm.weight"
            y = b.rms_norm(y, norm, eps=dims.eps, groups=heads, offset=how.norm_offset)
        return b.rope(y, heads=heads, frequencies=how.frequencies, interleaved=how.interleaved)

    q = project(x, "q", (2 if how.gated else 1) * dims.heads * dims.head_dim)
    k = project(x, "k", dims.kv_heads * dims.head_dim)
    v = project(x, "v", dims.kv_heads * dims.head_dim)
    gate = None
    if how.gated:
        gate = b.part(q, dims.head_dim, dims.head_dim, groups=dims.heads)
        q = b.part(q, 0, dims.head_dim, groups=dims.heads)
    q, k = positioned(q, "q", dims.heads), positioned(k, "k", dims.kv_heads)
    cache = KvCache(dims.kv_heads, dims.head_dim, how.window)
    attended = b.attend(q, k, v, cache, heads=dims.heads, scale=how.scale)
    if gate is not None:
        attended = b.gate(gate, attended, Activation.SIGMOID)
    return project(attended, "o", dims.hidden)


def gated_mlp(
    b: ProgramBuilder,
    x: Value,
    layer: str,
    dims: Dimensions,
    activation: Activation,
    *,
    biased: frozenset[str] = frozenset(),
) -> Value:
    """``down(activation(gate(x)) * up(x))``."""

    def project(x: Value, part: str, width: int) -> Value:
        return _project(b, x, layer, f"mlp.{part}_proj", width, biased)

    gate = project(x, "gate", dims.intermediate)
    up = project(x, "up", dims.intermediate)
    return project(b.gate(gate, up, activation), "down", dims.hidden)


def _project(
    b: ProgramBuilder, x: Value, layer: str, part: str, width: int, biased: frozenset[str]
) -> Value:
    name = f"{layer}.{part}"
    return b.linear(x, f"{name}.weight", width, bias=f"{name}.bias" if part in biased else None)


def pre_norm_decoder(
    family: str,
    dims: Dimensions,
    how: tuple[Attention, ...],
    *,
    activation: Activation = Activation.SILU,
    biased: frozenset[str] = frozenset(),
) -> Program:
    """Llama's shape: a norm before attention and one before the gated MLP, each added back.

    ``how`` has an entry for each layer; ``biased`` names the projections with a bias.
    """
    b = dims.builder(family)
    x = b.embed(EMBEDDING, dims.hidden)
    for index, attention_of_layer in enumerate(how):
        layer = f"model.layers.{index}"
        h = b.rms_norm(x, f"{layer}.input_layernorm.weight", eps=dims.eps)
        x = b.add(x, attention(b, h, layer, dims, attention_of_layer, biased=biased))
        h = b.rms_norm(x, f"{layer}.post_attention_layernorm.weight", eps=dims.eps)
        x = b.add(x, gated_mlp(b, h, layer, dims, activation, biased=biased))
    return head(b, x, dims)


def head(b: ProgramBuilder, x: Value, dims: Dimensions, *, norm_offset: float = 0.0) -> Program:
    """The final norm and the logits, of the wanted tokens alone."""
    x = b.rms_norm(b.select(x), FINAL_NORM, eps=dims.eps, offset=norm_offset)
    return b.logits(x, EMBEDDING if dims.tied else HEAD)
