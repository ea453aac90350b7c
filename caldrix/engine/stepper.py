"""A step: guesses where they are wanted, the lane, and what each sequence picks from its logits.

The engine's thread alone calls it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from functools import partial

import attrs
import structlog
from attrs import frozen

from caldrix.engine.sampling import UnusableLogits
from caldrix.engine.scheduler import Work
from caldrix.engine.sequence import Sequence
from caldrix.engine.speculation.proposer import Guess
from caldrix.engine.speculation.speculator import Speculator
from caldrix.models.lane import Executor, LaneLost, PickingExecutor, Slice

_log = structlog.get_logger(__name__)


@frozen
class Picked:
    """Tokens that were picked; none where no logits were wanted."""

    tokens: tuple[int, ...] = ()


@frozen
class Failed:
    """The step failed on this sequence, whose row holds nothing usable now."""


@frozen
class Unclear:
    """The step failed, and it may have been for another sequence. The row holds nothing usable."""


Outcome = Picked | Failed | Unclear


class Stepper:
    """Computes steps over an executor, with guesses by ``speculator`` if there is one."""

    def __init__(self, executor: Executor, speculator: Speculator | None) -> None:
        self._executor = executor
        self._picker = (
            executor if isinstance(executor, PickingExecutor) and executor.picks else None
        )
        self._speculator = speculator
        self._guessed_for: Sequence | None = None
        self._guess = Guess()
        self._seconds = 0.0

    def with_draft(self, work: SequenceOf[Work]) -> SequenceOf[Work]:
        """The same step, and tokens that may follow if its one sequence decodes."""
        self._guess = Guess()
        if self._speculator is None or len(work) != 1:
            return work
        (item,) = work
        sequence = item.sequence
        if not sequence.speculates or sequence.isolated:
            return work
        if sequence is not self._guessed_for:
            self._guessed_for = sequence
            self._speculator.begin()
        if not sequence.decoding:
            self._speculator.read(sequence.tokens[: item.slice.start])
            return work
        self._guess = self._speculator.guess(sequence.tokens, sequence.longest_draft)
        draft = self._guess.tokens
        return [attrs.evolve(item, slice=sequence.next_slice(1, draft), draft=draft)]

    def compute(self, work: SequenceOf[Work]) -> list[Outcome]:
        """Runs the step; an outcome for each part of it. Raises LaneLost."""
        began = time.perf_counter()
        slices = [self._with_draw(item) for item in work]
        try:
            logits = self._executor.step(slices)
        except LaneLost:
            raise
        except Exception:  # noqa: BLE001  # whatever broke, the next requests deserve their chance
            _log.exception("step_failed", requests=_names(work))
            return [_failure(work) for _ in work]
        outcomes: list[Outcome] = []
        drawn = iter(() if self._picker is None else self._picker.picked)
        first = 0
        for item, computed in zip(work, slices, strict=True):
            if computed.draw is not None:
                pick = partial(item.sequence.take_drawn, next(drawn))
            else:
                end = first + computed.wanted
                pick = partial(item.sequence.pick, logits[first:end], item.draft)
                first = end
            outcomes.append(_pick(work, item, pick))
        self._seconds = time.perf_counter() - began
        return outcomes

    def _with_draw(self, item: Work) -> Slice:
        """The item's slice, and what the lane needs to know if it is to pick the next token."""
        if self._picker is None or item.slice.wanted != 1:
            return item.slice
        return attrs.evolve(item.slice, draw=item.sequence.draw())

    def learn(self, item: Work, accepted: int) -> None:
        """Tells the speculator how the step went that its guess, perhaps an empty one, was in."""
        sequence = item.sequence
        if self._speculator is not None and sequence is self._guessed_for and not sequence.ended:
            self._speculator.record(self._guess, accepted, self._seconds)


def _pick(work: SequenceOf[Work], item: Work, pick: Callable[[], list[int]]) -> Outcome:
    try:
        return Picked(tuple(pick()))
    except UnusableLogits:
        _log.error("unusable_logits", requests=_names(work), position=item.slice.start)
    except Exception:  # noqa: BLE001  # one sequence's settings must not end the others
        _log.exception("pick_failed", requests=_names([item]))
        return Failed()
    return _failure(work)


def _failure(work: SequenceOf[Work]) -> Outcome:
    """Alone it was the sequence's own fault; in company that is to be found out."""
    return Failed() if len(work) == 1 else Unclear()


def _names(work: SequenceOf[Work]) -> list[str | None]:
    return [item.sequence.name for item in work]
