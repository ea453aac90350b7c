"""The families, and how a checkpoint finds its own and its weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from attrs import frozen

from caldrix.errors import quoted
from caldrix.models import gemma3, llama, qwen2, qwen3, qwen3_5, smolvlm
from caldrix.models.family import Family
from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.models.program import Program
from caldrix.models.tensors import NamedTensors
from caldrix.models.vision_tower import Tower
from caldrix.weights.checkpoint import AnyCheckpoint
from caldrix.weights.directory import CONFIG
from caldrix.weights.errors import printable
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.safetensors import SafetensorsCheckpoint
from caldrix.weights.tensor import Tensor

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    qwen3_5.FAMILY,
    gemma3.FAMILY,
    smolvlm.FAMILY,
)

_LAYER = "model.layers."
# Checkpoints with a vision tower keep the same text model under one of these.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "model.text_model.")

# Tensors that may go unread, beside what a family says itself.
_HARMLESS_IN_SAFETENSORS = (
    # Buffers that are computed from config.json.
    re.compile(r"(?:.+\.)?rotary_emb\.inv_freq"),
    # A copy of a tied embedding; where the embedding isn't tied, it has been read.
    re.compile(r"(?:language_model\.)?lm_head\.weight"),
    # Layers that guess several tokens ahead; the model's own tokens don't depend on them.
    re.compile(r"mtp\..+"),
)
_HARMLESS_IN_GGUF = ()


@frozen(eq=False)
class BoundProgram:
    """A Program and the tensors its weight names stand for, shapes checked."""

    program: Program
    weights: Mapping[str, Tensor]
    tower: BoundTower | None = None


@frozen(eq=False)
class BoundTower:
    """A vision tower and the tensors its weight names stand for, shapes checked."""

    tower: Tower
    weights: Mapping[str, Tensor]


def bind(checkpoint: AnyCheckpoint) -> BoundProgram:
    """The Program that a checkpoint describes, and its weights. Raises UnsupportedModel."""
    if isinstance(checkpoint, GgufCheckpoint):
        return _bind_gguf(checkpoint)
    return _bind_directory(checkpoint)


def _bind_directory(checkpoint: SafetensorsCheckpoint) -> BoundProgram:
    """config.json's ``model_type`` names the family."""
    where = f"{checkpoint.path.name}/{CONFIG}"
    config = Fields(where, checkpoint.directory.read_json(CONFIG))
    family = _find(
        config.text("model_type"),
        where,
        {kind: family for family in FAMILIES for kind in family.model_types},
    )
    tensors = NamedTensors(checkpoint.path.name, checkpoint.tensors, _published_names)
    program = family.from_config(config, tensors)
    tower = None
    if family.tower is not None:
        described = family.tower(config, tensors)
        tower = BoundTower(described, _shaped(tensors, described.program.weights))
    return _bound(program, tower, family, tensors, _HARMLESS_IN_SAFETENSORS)


def _bind_gguf(checkpoint: GgufCheckpoint) -> BoundProgram:
    """``general.architecture`` names the family."""
    where = checkpoint.path.name
    architecture = Fields(where, checkpoint.metadata).text("general.architecture")
    family = _find(
        architecture,
        where,
        {kind: family for family in FAMILIES for kind in family.architectures},
    )
    metadata = Fields(where, checkpoint.metadata, f"{architecture}.")
    tensors = NamedTensors(
        where, checkpoint.tensors, lambda name: (gguf_name(name, family.gguf_names),)
    )
    assert family.from_gguf is not None, f"{family.name} has an architecture and no reader"
    program = family.from_gguf(metadata, tensors)
    return _bound(program, None, family, tensors, _HARMLESS_IN_GGUF)


def gguf_name(name: str, names: Mapping[str, str]) -> str:
    """A weight's name in a GGUF file: ``model.layers.3.mlp.up_proj.weight`` is
    ``blk.3.ffn_up.weight``. A part whose end differs there stands in ``names`` with it.
    """
    if not name.startswith(_LAYER):
        return names[name]
    layer, _, rest = name.removeprefix(_LAYER).partition(".")
    if rest in names:
        return f"blk.{layer}.{names[rest]}"
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{names[part]}.{kind}"


def _published_names(name: str) -> Sequence[str]:
    """A weight's possible names in safetensors files."""
    if not name.startswith("model."):
        return (name, f"language_model.{name}")
    return tuple(prefix + name.removeprefix("model.") for prefix in _PREFIXES)


def _find(kind: str, where: str, known: Mapping[str, Family]) -> Family:
    if kind not in known:
        raise UnsupportedModel(
            f"{where}: {quoted(kind)} models are not supported; "
            f"supported: {', '.join(sorted(known))}"
        )
    return known[kind]


def _shaped(tensors: NamedTensors, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, Tensor]:
    return {name: tensors.read_shaped(name, shape) for name, shape in shapes.items()}


def _bound(
    program: Program,
    tower: BoundTower | None,
    family: Family,
    tensors: NamedTensors,
    harmless: Sequence[re.Pattern[str]],
) -> BoundProgram:
    """The program with its weights. Refuses a tensor that would go unread: without it the answers
    would not be the model's.
    """
    weights = _shaped(tensors, program.weights)
    for name in tensors.unread():
        if name.startswith(family.unserved):
            continue
        if not any(pattern.fullmatch(name) for pattern in harmless):
            raise UnsupportedModel(
                f"{tensors.where} has the tensor {printable(name, 80)}, which the supported "
                f"{family.name} models don't have; they would answer wrongly without it"
            )
    return BoundProgram(program, weights, tower)
