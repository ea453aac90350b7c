"""Picking the next token from logits, on the CPU.

The order is: repetition penalty, top-k, top-p, min-p, temperature, one draw. All arithmetic is in
float64. Candidates are ranked best first, ties by lower token id, and the rank order is found only
as far down as the draw needs it, so that a large vocabulary is not sorted for every token.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from typing import Literal

import numpy as np
import numpy.typing as npt
from attrs import frozen

from caldrix.errors import CaldrixError
from caldrix.weights.tensor import Float32

_FIRST_RANKS = 64
_RANKS_GROWTH = 16
_LARGEST = np.finfo(np.float64).max

Float64 = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@frozen
class SamplingSettings:
    """How tokens are picked; the defaults are greedy.

    Callers check the ranges, which `sampling_ranges` has.
    """

    temperature: float = 0.0
    """Finite, >= 0; 0 is greedy."""
    top_k: int = 0
    """>= 0; 0 keeps every token."""
    top_p: float = 1.0
    """In (0, 1]; 1 keeps every token."""
    min_p: float = 0.0
    """In [0, 1]; 0 is off."""
    repetition_penalty: float = 1.0
    """Finite, > 0; 1 is off."""
    seed: int | None = None
    """Not negative; None draws a fresh one."""


class UnusableLogits(CaldrixError):
    """The model's logits hold no finite best: nothing can be picked from them."""


class Sampler:
    """Picks one sequence's tokens.

    ``seed`` is the seed in use: with it, the same settings and the same logits give the same
    tokens. One uniform number is drawn for each token that is sampled, none for a greedy one.
    """

    def __init__(self, settings: SamplingSettings, prompt: Iterable[int]) -> None:
        self._settings = settings
        self.seed = secrets.randbits(63) if settings.seed is None else settings.seed
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._seen = dict.fromkeys(prompt)
        # What most requests ask for takes a single look at the logits.
        self._plain = settings.temperature == 0.0 and settings.repetition_penalty == 1.0

    def pick(self, logits: Float32) -> int:
        """The next token, from float32 ``[vocab_size]`` logits. Raises UnusableLogits."""
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            raise UnusableLogits("the model gave logits that are not finite numbers")
        if self._plain:
            return best
        # The smallest temperatures and penalties overflow to infinities that mean what they say.
        with np.errstate(over="ignore"):
            token = self._choose(self._penalized(logits))
        self._seen[token] = None
        return token

    def _penalized(self, logits: Float32) -> Float32 | Float64:
        penalty = self._settings.repetition_penalty
        if penalty == 1.0 or not self._seen:
            return logits
        penalized = logits.astype(np.float64)
        seen = np.fromiter(self._seen, np.int64, len(self._seen))
        values = penalized[seen]
        penalized[seen] = np.where(values > 0, values / penalty, values * penalty)
        return np.clip(penalized, -_LARGEST, _LARGEST, out=penalized)

    def _choose(self, logits: Float32 | Float64) -> int:
        best = int(np.argmax(logits))
        settings = self._settings
        if settings.temperature == 0.0 or settings.top_k == 1:
            if settings.temperature != 0.0:
                self._random.random()
            return best
        ranking = Ranking(logits, settings.top_k)
        kept = ranking.size
        if settings.top_p < 1.0:
            kept = ranking.first_reaching(settings.top_p, temperature=1.0, among=kept)
        if settings.min_p > 0.0:
            kept = min(kept, ranking.count_at_least(settings.min_p))
        draw = self._random.random()
        return ranking.token_at(draw, temperature=settings.temperature, among=kept)


class Ranking:
    """The candidates best first, ties by lower id, ranked only as far as was asked for.

    ``size`` is the number of candidates: all of the vocabulary, or ``top_k``.
    """

    def __init__(self, logits: Float32 | Float64, top_k: int) -> None:
        self._logits = logits
        self._top = float(np.max(logits))
        self.size = min(top_k, logits.size) if top_k else logits.size
        self._ids: Ids = np.empty(0, np.int64)
        self._offsets: Float64 = np.empty(0, np.float64)

    def first_reaching(self, share: float, *, temperature: float, among: int) -> int:
        """How many of the ``among`` best it takes for their part of the probability to be >= share.

        At least one; all of them when rounding leaves the whole sum short of the share.
        """
        return self._rank_where(share, "left", temperature, among) + 1

    def token_at(self, share: float, *, temperature: float, among: int) -> int:
        """The first token, best first, whose cumulative probability exceeds ``share``."""
        rank = self._rank_where(share, "right", temperature, among)
        return int(self._ids[rank])

    def count_at_least(self, ratio: float) -> int:
        """How many candidates have at least ``ratio`` times the probability of the best."""
        weights = np.exp(self._logits.astype(np.float64) - self._top)
        return max(1, min(self.size, int(np.count_nonzero(weights >= ratio))))

    def _rank_where(
        self, share: float, side: Literal["left", "right"], temperature: float, among: int
    ) -> int:
        total = self._total(temperature, among)
        ranks = min(_FIRST_RANKS, among)
        while True:
            self._rank(ranks)
            cumulative = np.cumsum(np.exp(self._offsets[:ranks] / temperature)) / total
            if ranks == among or cumulative[-1] > share:
                return min(int(np.searchsorted(cumulative, share, side=side)), ranks - 1)
            ranks = min(ranks * _RANKS_GROWTH, among)

    def _total(self, temperature: float, among: int) -> float:
        if among == self._logits.size:
            offsets = self._logits.astype(np.float64) - self._top
        else:
            self._rank(among)
            offsets = self._offsets[:among]
        return float(np.sum(np.exp(offsets / temperature)))

    def _rank(self, ranks: int) -> None:
        """Makes the first ``ranks`` of the order known."""
        if ranks <= self._ids.size:
            return
        logits = self._logits
        if ranks < logits.size:
            threshold = np.partition(logits, logits.size - ranks)[logits.size - ranks]
            candidates = np.flatnonzero(logits >= threshold)
        else:
            candidates = np.arange(logits.size)
        offsets = logits[candidates].astype(np.float64) - self._top
        order = np.argsort(-offsets, kind="stable")[:ranks]
        self._ids = candidates[order]
        self._offsets = offsets[order]
