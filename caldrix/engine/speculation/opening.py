"""From settings to a speculator that runs: its draft model, and what its tuner learned before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
from attrs import frozen

from caldrix.engine.speculation.draft import DraftProposer
from caldrix.engine.speculation.memory import MemoryKey, SpeculationMemory
from caldrix.engine.speculation.ngram import NgramProposer
from caldrix.engine.speculation.proposer import Proposer
from caldrix.engine.speculation.settings import SpeculationRefused, SpeculationSettings
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.speculation.tuner import Tuner
from caldrix.errors import Refusal, quoted
from caldrix.models.lane import Lane
from caldrix.models.loading import TextModel, load_model
from caldrix.weights.names import resolve
from caldrix.weights.progress import SILENT, Progress

_log = structlog.get_logger(__name__)


class OtherVocabulary(Refusal):
    """The draft's token ids stand for other tokens than the model's."""


@frozen(eq=False)
class Speculation:
    """A speculator, and what it is in a few words."""

    speculator: Speculator
    summary: str


@frozen(eq=False)
class _Chosen:
    proposer: Proposer
    summary: str
    name: str
    """What the tuner's state is kept under."""


@contextmanager
def open_speculation(
    settings: SpeculationSettings,
    model: TextModel,
    *,
    path: Path,
    lane: Lane,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> Iterator[Speculation | None]:
    """What guesses ahead for ``model``, whose checkpoint is at ``path``; None if that is off.

    A draft model stays loaded while the block lasts, and what the tuner has learned is written at
    its end. ``settings`` are what `settle` gave. Raises SpeculationRefused and
    SpeculationMemoryUnusable, and at the end SpeculationMemoryLost.
    """
    if settings.mode == "off":
        yield None
        return
    if model.program.states:
        reason = "the model's states cannot go back over rejected guesses; leave out --speculate"
        if settings.mode != "auto":
            raise SpeculationRefused(f"--speculate {settings.mode}: {reason}")
        _log.warning("speculation_off", reason=reason)
        yield None
        return
    memory = settings.memory
    with ExitStack() as stack:
        try:
            chosen = (
                stack.enter_context(_draft(settings, model, lane, threads, progress))
                if settings.drafts
                else _lookup(settings)
            )
        except Refusal as refusal:
            if settings.mode != "auto":
                raise SpeculationRefused(f"--draft {settings.draft}: {refusal}") from refusal
            chosen = _lookup(settings)
            # It holds the draft's state.
            memory = None
            _log.warning("draft_unusable", reason=str(refusal), instead=chosen.summary)
        key = MemoryKey(str(path.resolve()), lane.name, chosen.name)
        tuner = stack.enter_context(_tuner(chosen.proposer.kinds, settings, memory, key))
        fixed = settings.draft_tokens
        length = "length tuned" if fixed is None else f"{fixed} a step"
        yield Speculation(Speculator(chosen.proposer, tuner), f"{chosen.summary}, {length}")


def _lookup(settings: SpeculationSettings) -> _Chosen:
    summary = f"n-gram lookup {settings.ngram}"
    return _Chosen(NgramProposer(settings.ngram), summary, f"ngram {settings.ngram}")


@contextmanager
def _draft(
    settings: SpeculationSettings,
    model: TextModel,
    lane: Lane,
    threads: int | None,
    progress: Progress,
) -> Iterator[_Chosen]:
    """The draft model on the model's lane, kept as the lane likes best: it decides no answer.

    Raises a Refusal that says what is wrong with it.
    """
    assert settings.draft is not None
    resolved = resolve(settings.draft, progress)
    with load_model(
        resolved.path,
        lane=lane,
        threads=threads,
        longest=model.context,
        reserved=model.cache_bytes,
        progress=progress,
    ) as draft:
        if draft.program.states:
            raise SpeculationRefused(
                "its states cannot go back over rejected guesses; name a draft of another family"
            )
        _require_same_vocabulary(model, draft)
        proposer = DraftProposer(
            draft.executor, context=draft.context, vocab_size=model.executor.vocab_size
        )
        name = f"draft {resolved.path.resolve()}"
        yield _Chosen(proposer, f"draft model {resolved.served_name}", name)


def _require_same_vocabulary(model: TextModel, draft: TextModel) -> None:
    difference = model.tokenizer.first_difference(draft.tokenizer)
    if difference is not None:
        raise OtherVocabulary(
            f"its token {difference.token_id} is {quoted(difference.there)}, and the model's is "
            f"{quoted(difference.here)}; name a draft with the model's own vocabulary"
        )


@contextmanager
def _tuner(
    kinds: int, settings: SpeculationSettings, memory: Path | None, key: MemoryKey
) -> Iterator[Tuner]:
    """The tuner, with what it remembers and is to remember, if it has a memory."""
    if memory is None:
        yield Tuner(kinds, fixed=settings.draft_tokens)
        return
    kept = SpeculationMemory(memory)
    tuner = Tuner(kinds, fixed=settings.draft_tokens, state=kept.recall(key, kinds))
    try:
        yield tuner
    finally:
        kept.remember(key, tuner.state)
