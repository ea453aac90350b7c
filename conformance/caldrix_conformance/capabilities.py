"""What a target can do. A clause that needs what the target lacks isn't held against it."""

from __future__ import annotations

from enum import Enum


class Capability(Enum):
    """The names that clauses use in ``needs`` and a person in ``--without``."""

    CHAT = "chat"
    """POST /v1/chat/completions answers, and the model has a chat template."""
    COMPLETIONS = "completions"
    """POST /v1/completions answers."""
    SAMPLING = "sampling"
    """The sampling fields are honoured."""
    TOKENS = "tokens"
    """Prompts may be token ids, and answers can carry them."""
    NO_TEMPLATE = "no-template"
    """The model has no chat template, as base models."""
    TEXT_ONLY = "text-only"
    """The model has no vision tower, so images are refused and bodies end at 4 MiB."""
    VISION = "vision"
    """The model has a vision tower."""
    SYSTEMONE = "systemone"
    """POST /v1/systemone answers, in either reading."""
    ZERO_SHOT = "zero-shot"
    """/v1/systemone reads its answers from a chat model."""
    DECIDER = "decider"
    """/v1/systemone reads its answers from a model trained for it."""
    BATCHED = "batched"
    """The server takes several requests at a time into one step, so /v1/systemone is refused."""
    SPECULATION = "speculation"
    """Greedy answers are guessed ahead, and their usage says how often that went well."""
    METRICS = "metrics"
    """GET /metrics answers."""
    TELEMETRY = "telemetry"
    """GET /debug/requests answers."""
    LOOPBACK = "loopback"
    """The target is reached at a loopback address."""
