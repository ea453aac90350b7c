"""What is in the cache, and what a checkpoint says about itself: for people, not for programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from attrs import frozen

from caldrix.weights import hub, hub_record, ollama
from caldrix.weights.checkpoint import AnyCheckpoint
from caldrix.weights.directory import (
    CHAT_TEMPLATE,
    CONFIG,
    TOKENIZER,
    TOKENIZER_CONFIG,
    ModelDirectory,
)
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.metadata import Metadata
from caldrix.weights.names import ALIASES
from caldrix.weights.wheels import WheelSource


@frozen
class CachedModel:
    """A model on this machine, under a name that resolves to it. ``size`` is in bytes."""

    name: str
    source: str
    size: int
    path: Path


@frozen
class Summary:
    """A checkpoint in a few words. ``size_of_tensors`` is in bytes.

    ``context_length``, ``tokenizer`` and ``architecture`` are None when the files do not say.
    """

    format: str
    architecture: str | None
    parameters: int
    tensors: int
    types: dict[str, int]
    context_length: int | None
    size_of_tensors: int
    tokenizer: str | None
    chat_template: bool


def list_cached() -> list[CachedModel]:
    """Every model that `resolve` finds without a request: pulled ones, and Ollama's own."""
    return [*_cached_wheels(), *_cached_repositories(), *_stored_tags()]


def _cached_wheels() -> list[CachedModel]:
    return [
        CachedModel(name, source.kind, source.size, path)
        for name, source in ALIASES.items()
        if isinstance(source, WheelSource) and (path := source.cached()) is not None
    ]


def _cached_repositories() -> list[CachedModel]:
    return [
        CachedModel(
            record.repo
            if record.revision == hub.DEFAULT_REVISION
            else f"{record.repo}@{record.revision}",
            "hub",
            sum(file.size for file in record.files.values()),
            Path(record.snapshot),
        )
        for record in hub_record.recorded()
    ]


def _stored_tags() -> list[CachedModel]:
    models: dict[str, CachedModel] = {}
    for source, path in ollama.stored():
        name = f"{ollama.PREFIX}{source.served_name}"
        models[name] = CachedModel(name, source.kind, path.stat().st_size, path)
    return list(models.values())


def summarize(checkpoint: AnyCheckpoint) -> Summary:
    """What there is to say about an opened checkpoint. Raises CorruptFile for broken files."""
    tensors = checkpoint.tensors.values()
    described = (
        _describe_gguf(checkpoint.metadata)
        if isinstance(checkpoint, GgufCheckpoint)
        else _describe_directory(checkpoint.directory)
    )
    return Summary(
        parameters=sum(
            t.data.size // t.format.block_bytes * t.format.block_values for t in tensors
        ),
        tensors=len(tensors),
        types=dict(Counter(tensor.format.name for tensor in tensors).most_common()),
        size_of_tensors=sum(tensor.data.nbytes for tensor in tensors),
        **described,
    )


def _describe_gguf(metadata: Metadata) -> dict[str, Any]:
    architecture = metadata.string("general.architecture", None)
    kind = metadata.string("tokenizer.ggml.model", None)
    flavour = metadata.string("tokenizer.ggml.pre", None)
    return {
        "format": "GGUF",
        "architecture": architecture,
        "context_length": metadata.integer(f"{architecture}.context_length", None),
        "tokenizer": f"{kind} ({flavour})" if kind and flavour else kind,
        "chat_template": "tokenizer.chat_template" in metadata,
    }


def _describe_directory(directory: ModelDirectory) -> dict[str, Any]:
    config = directory.read_json(CONFIG)
    nested = config.get("text_config")
    text = nested if isinstance(nested, dict) else config
    model = _optional(directory, TOKENIZER).get("model")
    return {
        "format": "safetensors",
        "architecture": _text(config.get("model_type")),
        "context_length": _integer(text.get("max_position_embeddings")),
        "tokenizer": _text(model.get("type")) if isinstance(model, dict) else None,
        "chat_template": directory.has(CHAT_TEMPLATE)
        or "chat_template" in _optional(directory, TOKENIZER_CONFIG),
    }


def _optional(directory: ModelDirectory, name: str) -> dict[str, Any]:
    return directory.read_json(name) if directory.has(name) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: object) -> int | None:
    return value if type(value) is int else None
