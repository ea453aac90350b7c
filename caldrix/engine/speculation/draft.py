"""Guesses from a second, smaller model of the same vocabulary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import structlog

from caldrix.engine.speculation.proposer import Guess
from caldrix.models.lane import Executor, LaneLost, Slice
from caldrix.weights.tensor import Float32

_ROW = 0
_SLICE = 512
"""Tokens of a sequence that are computed in one step."""

_log = structlog.get_logger(__name__)


class DraftProposer:
    """Drafts greedily with an executor of its own, whose row 0 follows the sequence.

    What the row holds is kept as far as a sequence begins with it, from one sequence to the next
    too. A failure of the executor is logged, and the sequence goes on without guesses; the next one
    is drafted again, unless the lane is lost. See `Proposer`.
    """

    kinds = 1

    def __init__(self, executor: Executor, *, context: int, vocab_size: int) -> None:
        """``context`` is the draft's, ``vocab_size`` that of the model whose text is guessed."""
        self._executor = executor
        self._context = context
        # A draft's embedding can have more rows than the model's, which must never see their ids.
        self._draftable = min(vocab_size, executor.vocab_size)
        self._held: list[int] = []
        self._same = 0
        """So many of the held tokens are known to be the sequence's first."""
        self._known = 0
        """So many of the sequence's tokens are known to be in the draft's vocabulary."""
        self._silent = False
        self._lost = False

    def begin(self) -> None:
        """Another sequence; what the row holds may be its beginning."""
        self._same = self._known = 0
        self._silent = self._lost

    def read(self, tokens: Sequence[int]) -> None:
        """Computes all but the last token, with which a draft begins."""
        end = min(len(tokens) - 1, self._context)
        if self._can_read(tokens) and self._shared(tokens) < end:
            with self._going_on():
                self._compute(tokens, end, wanted=0)

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        """The draft's own greedy continuation, shorter near the end of its context.

        None where the sequence has a token that the draft's vocabulary lacks.
        """
        # A draft's last token is never computed, so it needs no position.
        most = min(most, self._context + 1 - len(tokens))
        drafted: list[int] = []
        if most < 1 or not self._can_read(tokens):
            return Guess()
        with self._going_on():
            logits = self._compute(tokens, len(tokens), wanted=1)
            drafted.append(self._best(logits))
            while len(drafted) < most:
                logits = self._step(len(self._held), drafted[-1:], wanted=1)
                drafted.append(self._best(logits))
        return Guess(tuple(drafted))

    def _can_read(self, tokens: Sequence[int]) -> bool:
        if not self._silent:
            lacking = any(token >= self._executor.vocab_size for token in tokens[self._known :])
            self._known = len(tokens)
            self._silent = lacking
        return not self._silent

    def _shared(self, tokens: Sequence[int]) -> int:
        """How many tokens the row holds that the sequence begins with."""
        most = min(len(self._held), len(tokens))
        while self._same < most and self._held[self._same] == tokens[self._same]:
            self._same += 1
        return self._same

    def _compute(self, tokens: Sequence[int], end: int, *, wanted: int) -> Float32:
        """Makes the row hold the first ``end`` tokens; the logits are those after the last one."""
        start = min(self._shared(tokens), end - 1)
        start = self._executor.resumable(_ROW, start) if start else 0
        del self._held[start:]
        for first in range(start, end, _SLICE):
            last = min(first + _SLICE, end)
            logits = self._step(first, tokens[first:last], wanted=wanted if last == end else 0)
        self._same = end
        return logits

    def _step(self, start: int, tokens: Sequence[int], *, wanted: int) -> Float32:
        logits = self._executor.step([Slice(_ROW, start, np.array(tokens, np.int64), wanted)])
        self._held.extend(tokens)
        return logits

    def _best(self, logits: Float32) -> int:
        return int(np.argmax(logits[-1, : self._draftable]))

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Ends the drafting of this sequence where the executor fails, and never the answer."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever broke, guesses are no part of an answer
            self._held.clear()
            self._same = 0
            self._silent = True
            self._lost = isinstance(error, LaneLost)
            _log.exception("draft_failed", until="the end" if self._lost else "the next request")
