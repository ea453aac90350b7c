"""What was asked for at start: whether to guess ahead, and how."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

import attrs
import structlog
from attrs import field, frozen, validators

from caldrix.engine.speculation.memory import SpeculationMemory
from caldrix.engine.speculation.ngram import SuffixLengths
from caldrix.engine.speculation.tuner import LONGEST_DRAFT
from caldrix.errors import Refusal
from caldrix.models.lane import Lane

SpeculationMode: TypeAlias = Literal["off", "draft", "ngram", "auto"]

_log = structlog.get_logger(__name__)


class SpeculationRefused(Refusal):
    """An explicit mode where no draft can be verified, or whose draft model is of no use."""


@frozen
class SpeculationSettings:
    """How one server guesses ahead. Under ``auto`` with the draft, if one is named."""

    mode: SpeculationMode = "off"
    draft: str | None = None
    """The draft model, by any name that a model has."""
    draft_tokens: int | None = field(
        default=None,
        validator=validators.optional([validators.ge(1), validators.le(LONGEST_DRAFT)]),
    )
    """The length of every draft; None has it tuned."""
    ngram: SuffixLengths = field(factory=SuffixLengths)
    memory: Path | None = None
    """The file that keeps what the tuner learns."""

    @property
    def drafts(self) -> bool:
        """Whether a draft model is to be loaded."""
        return self.mode == "draft" or (self.mode == "auto" and self.draft is not None)


def settle(
    settings: SpeculationSettings, lane: Lane, *, max_batch: int, weight_budget: int | None
) -> SpeculationSettings:
    """The settings as far as they can be met, before any model is loaded.

    Raises SpeculationRefused where an explicit mode can't be; ``auto`` turns itself off with a note
    instead. Raises SpeculationMemoryUnusable.
    """
    if settings.mode == "off":
        return settings
    if reason := _obstacle(lane, max_batch, weight_budget):
        if settings.mode != "auto":
            raise SpeculationRefused(f"--speculate {settings.mode}: {reason}")
        _log.warning("speculation_off", reason=reason)
        return attrs.evolve(settings, mode="off")
    if settings.memory is not None and not (settings.mode == "auto" and settings.drafts):
        # To be told now rather than after a minute of loading. Where an unusable draft may yet
        # give way to lookup, the file must not be looked at before.
        SpeculationMemory(settings.memory)
    return settings


def _obstacle(lane: Lane, max_batch: int, weight_budget: int | None) -> str | None:
    """Why no draft can be verified, and what to do; None where one can."""
    if not lane.verifies_drafts:
        return (
            f"the {lane.name} lane cannot verify a draft with the kernels in use; choose another "
            "--backend, or leave out --speculate"
        )
    if max_batch > 1:
        return (
            f"guesses are for one request at a time, and --max-batch is {max_batch}; "
            "restart with --max-batch 1"
        )
    if weight_budget is not None:
        return "guesses need all weights in memory; leave out --weight-budget, or --speculate"
    return None
