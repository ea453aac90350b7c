"""The tokens that may be picked: cutting them down, and drawing one of them.

Candidates rank best first, equal logits by lower token id. A large vocabulary is never sorted for
one token: mostly the few hundred best hold the answer, and limits of what the others weigh tell
which of them it is. The first limits come from the best of each few dozen candidates, the next from
float32 sums. Where neither are narrow enough, all is computed in float64 and searched. Whatever
tells it, the answer is that of float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from caldrix.engine.cumulative import Float64, Ids, Logits, Side, search
from caldrix.engine.scratch import scratch
from caldrix.weights.tensor import Float32

_HEAD = 256
"""How many of the best are ranked at once."""
_SMALL = 4096
"""Up to so many, all candidates are ranked."""
_FOLDS = 64
"""Candidates from which one maximum is taken, at most, to find a floor of the best."""

# A float32 total errs by less than this, relatively. Arguments of exp are off by four roundings,
# so that weights down to exp(-30) err by 7.2e-6 at most; a million smaller ones weigh less than
# 1e-7 of the best. exp itself errs by 4 units in the last place (5e-7), numpy's pairwise sum of a
# million by 32 roundings (1.9e-6).
_ROUGH_ERROR = 1e-5
_ROUGH_LIMIT = 2**20
_ROUGH_TEMPERATURES = (1e-30, 1e30)
_ROUNDING = 2.0**-24
_MOST_DOUBT = 0.1

Array = TypeVar("Array", Float32, Float64)


class Candidates:
    """Token ids and their logits, ids ascending.

    A candidate's weight at a temperature is ``exp((logit - best) / temperature)``; its probability
    is its part of the weight of all. Logits are float32 or float64 ``[count]`` with a finite best;
    of those that are -inf none is ever drawn. All is computed in float64. Overflows are meant, so
    callers silence numpy's warnings of them.
    """

    def __init__(self, logits: Logits, rounded: Float32, ids: Ids | None = None) -> None:
        """``rounded`` is the logits in float32, finite where they are; the same array, if possible.

        Neither may change as long as these candidates are used.
        """
        self._logits = logits
        self._rounded = rounded
        self._ids = ids
        self._maxima = _fold(rounded) if rounded.size > _SMALL else rounded
        self._head = self._ranked_head()
        """Positions of the best, best first: all, of a few, or `_HEAD` and perhaps some more."""
        self._top = float(logits[self._head[0]])

    def best(self, count: int) -> Candidates:
        """The ``count`` best; all, if there are no more."""
        if count >= self._logits.size:
            return self
        return self._through(self._position_of_rank(count - 1))

    def nucleus(self, share: float) -> Candidates:
        """The fewest of the best whose probabilities, at temperature 1, add up to ``share``.

        At least one.
        """
        return self._through(self._position_at(share, "left", temperature=1.0))

    def at_least(self, ratio: float) -> Candidates:
        """Those of at least ``ratio`` times the best one's probability, at temperature 1."""
        width = -math.log(ratio)
        # Lower by far more than what rounding does; the weights then decide.
        floor = self._top - width - 1e-6 * (1.0 + abs(self._top) + width)
        if self._rounded[self._head[-1]] < floor:
            positions = np.sort(self._head)
        else:
            positions = np.flatnonzero(self._rounded >= floor)
        return self._only(positions[self._weights(positions, 1.0) >= ratio])

    def draw(self, uniform: float, temperature: float) -> int:
        """The first token id, best first, whose cumulative probability exceeds ``uniform``.

        ``uniform`` lies in [0, 1).
        """
        position = self._position_at(uniform, "right", temperature)
        return position if self._ids is None else int(self._ids[position])

    def _only(self, positions: Ids) -> Candidates:
        rounded = self._rounded[positions]
        logits = rounded if self._logits is self._rounded else self._logits[positions]
        return Candidates(logits, rounded, positions if self._ids is None else self._ids[positions])

    def _through(self, position: int) -> Candidates:
        """The candidate at ``position`` and all that rank before it."""
        ranks = np.flatnonzero(self._head == position)
        if ranks.size:
            return self._only(np.sort(self._head[: ranks[0] + 1]))
        last = self._logits[position]
        kept = self._logits >= last
        kept[position + 1 :] &= self._logits[position + 1 :] != last
        return self._only(np.flatnonzero(kept))

    def _weights(self, positions: Ids | slice, temperature: float) -> Float64:
        """Weights of some of the candidates, in float64."""
        return _exp_offsets(self._logits[positions].astype(np.float64), self._top, temperature)

    def _all_weights(self, temperature: float) -> Float64:
        """Weights of all candidates, in the thread's scratch."""
        weights = scratch("weights", self._logits.size, np.float64)
        np.copyto(weights, self._logits)
        return _exp_offsets(weights, self._top, temperature)

    def _position_of_rank(self, rank: int) -> int:
        if rank < self._head.size:
            return int(self._head[rank])
        logits = self._logits
        value = np.partition(logits, logits.size - 1 - rank)[logits.size - 1 - rank]
        better = int(np.count_nonzero(logits > value))
        return int(np.flatnonzero(logits == value)[rank - better])

    def _position_at(self, share: float, side: Side, temperature: float) -> int:
        """Where the first candidate is, best first, whose cumulative probability is ``share``.

        It reaches the share (``side`` left), or exceeds it (right).
        """
        head = self._head
        weights = self._weights(head, temperature)
        cumulative = np.cumsum(weights)
        for least, most in self._limits(
            float(cumulative[-1]), float(weights[-1]), share, temperature
        ):
            first, last = (
                int(np.searchsorted(cumulative / total, share, side=side))
                for total in (least, most)
            )
            if first == last < head.size:
                return int(head[first])
        weights = self._all_weights(temperature)
        # What is left is smooth enough for the search to sample it.
        weights[head] = 0.0
        above, rest = float(cumulative[-1]), float(weights.sum())
        rank = int(np.searchsorted(cumulative / (above + rest), share, side=side))
        if rank < head.size:
            return int(head[rank])
        return search(self._logits, weights, above, rest, share, side)

    def _limits(
        self, head: float, worst: float, share: float, temperature: float
    ) -> Iterator[tuple[float, float]]:
        """Limits of the weight of all, each narrower than the one before and dearer.

        The head weighs ``head``, the worst of it ``worst``.
        """
        size = self._logits.size
        if size == self._head.size:
            yield head, head
            return
        coldest, hottest = _ROUGH_TEMPERATURES
        # How far rounding may move the arguments of exp, beside what _ROUGH_ERROR counts.
        exact = self._rounded is self._logits
        doubt = 0.0 if exact else 2 * _ROUNDING * abs(self._top) / temperature
        if not coldest <= temperature <= hottest or size > _ROUGH_LIMIT or doubt > _MOST_DOUBT:
            return
        slack = math.exp(doubt) * (1.0 + _ROUGH_ERROR)
        yield head, head + slack * self._most_others(worst, temperature)
        expected = float(self._weights(slice(None, None, _FOLDS), temperature).sum()) * _FOLDS
        if expected * share < head:
            # Else the head is unlikely to be enough.
            weights = scratch("weights", size, np.float32)
            np.copyto(weights, self._rounded)
            total = float(_exp_offsets(weights, self._rounded[self._head[0]], temperature).sum())
            yield max(head, total / slack), total * slack

    def _most_others(self, each: float, temperature: float) -> float:
        """What those outside the head weigh at most, if they weigh no more than ``each``."""
        maxima = self._maxima.astype(np.float64)
        rows = self._logits.size // maxima.size
        top = float(self._rounded[self._head[0]])
        weights = np.minimum(_exp_offsets(maxima, top, temperature), each)
        # The head is counted too, which outweighs the fewer than `_FOLDS` that are not folded.
        return rows * float(weights.sum())

    def _ranked_head(self) -> Ids:
        logits = self._logits
        if logits.size <= _SMALL:
            return np.argsort(-logits, kind="stable")
        # Each maximum that reaches the floor is of one candidate more that does.
        floor = np.partition(self._maxima, -_HEAD)[-_HEAD]
        positions = np.flatnonzero(self._rounded >= floor)
        if positions.size > 2 * _HEAD:
            # Many may equal the worst of the head.
            values = logits[positions]
            worst = np.partition(values, -_HEAD)[-_HEAD]
            better, equal = positions[values > worst], positions[values == worst]
            positions = np.concatenate([better, equal[: _HEAD - better.size]])
        return positions[np.argsort(-logits[positions], kind="stable")]


def _exp_offsets(logits: Array, top: float, temperature: float) -> Array:
    """``exp((logits - top) / temperature)``, in the same array and its precision."""
    logits -= top
    if temperature != 1.0:
        logits /= temperature
    return np.exp(logits, out=logits)


def _fold(logits: Float32) -> Float32:
    """The largest of every few dozen logits; a remainder is left out."""
    rows = min(_FOLDS, logits.size // (_SMALL // 2))
    columns = logits.size // rows
    folded: Float32 = logits[: rows * columns].reshape(rows, columns).max(axis=0)
    return folded
