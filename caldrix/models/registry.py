"""The families, and how a checkpoint finds its own and its weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import frozen

from caldrix.models import gemma3, llama, qwen2, qwen3
from caldrix.models.family import Family
from caldrix.models.fields import Fields, UnsupportedModel
from caldrix.models.program import Program
from caldrix.weights.checkpoint import AnyCheckpoint
from caldrix.weights.directory import CONFIG
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.safetensors import SafetensorsCheckpoint
from caldrix.weights.tensor import Tensor

FAMILIES: tuple[Family, ...] = (llama.FAMILY, qwen2.FAMILY, qwen3.FAMILY, gemma3.FAMILY)

_LAYER = "model.layers."
# Checkpoints with a vision tower keep the same text model under one of these.
_PREFIXES = ("model.", "model.language_model.", "language_model.model.")


@frozen(eq=False)
class BoundProgram:
    """A Program and the tensors its weight names stand for, shapes checked."""

    program: Program
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
    return _bound(family.from_config(config), checkpoint, _published_names)


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
    program = family.from_gguf(metadata, checkpoint.tensors)
    return _bound(program, checkpoint, lambda name: (gguf_name(name, family.gguf_names),))


def gguf_name(name: str, names: Mapping[str, str]) -> str:
    """A weight's name in a GGUF file: ``model.layers.3.mlp.up_proj.weight`` is
    ``blk.3.ffn_up.weight``.
    """
    if not name.startswith(_LAYER):
        return names[name]
    layer, _, rest = name.removeprefix(_LAYER).partition(".")
    part, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{names[part]}.{kind}"


def _published_names(name: str) -> Iterable[str]:
    """A weight's possible names in safetensors files."""
    if not name.startswith("model."):
        return (name, f"language_model.{name}")
    return tuple(prefix + name.removeprefix("model.") for prefix in _PREFIXES)


def _find(kind: str, where: str, known: Mapping[str, Family]) -> Family:
    if kind not in known:
        raise UnsupportedModel(
            f"{where}: {kind!r} models are not supported; supported: {', '.join(sorted(known))}"
        )
    return known[kind]


def _bound(
    program: Program, checkpoint: AnyCheckpoint, names: Callable[[str], Iterable[str]]
) -> BoundProgram:
    where, tensors = checkpoint.path.name, checkpoint.tensors
    weights: dict[str, Tensor] = {}
    for weight, shape in program.weights.items():
        candidates = tuple(names(weight))
        found = next((tensors[name] for name in candidates if name in tensors), None)
        if found is None:
            raise UnsupportedModel(f"{where} lacks the tensor {candidates[0]}")
        if found.shape != shape:
            raise UnsupportedModel(
                f"{where}: {found.name} has shape {list(found.shape)}, {list(shape)} is expected"
            )
        weights[weight] = found
    return BoundProgram(program, weights)
