"""Finding where a cumulative weight, best first, is a share of the whole, without sorting it all.

A sample tells between which two logits that is likely to be; the sums of the parts above, between
and below them, which are exact, tell in which part it is. That part is narrowed again until it is
small enough to sort. A poor sample costs time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from caldrix.weights.tensor import Float32

Float64: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Logits: TypeAlias = Float32 | Float64
Side: TypeAlias = Literal["left", "right"]
"""Whether a cumulative weight is to reach a share, or to exceed it: `numpy.searchsorted`'s word."""

_SORTED = 4096
_ROUNDS = 8
"""Narrowings after which what is left is sorted, however much: samples have told nothing."""
_SAMPLED = 1024
_MARGIN = 48
"""Ranks around a sample's estimate of a rank: three standard deviations where weights are even."""


def search(
    logits: Logits, weights: Float64, above: float, rest: float, share: float, side: Side
) -> int:
    """The position at which the cumulative weight is ``share`` of the total.

    Larger logits come first, equal ones by lower position. The sum starts at ``above``, which is
    not enough alone; ``rest`` is the sum of ``weights``, which fall with the logits but for zeros.
    Something of weight is found even where rounding leaves the sum short of the share.
    """
    total = above + rest

    def enough(weight: float) -> bool:
        return weight / total > share if side == "right" else weight / total >= share

    positions: Ids | None = None
    for _ in range(_ROUNDS):
        if logits.size <= _SORTED:
            break
        high, low = _pivots(logits, weights, (share * total - above) / rest)
        part, above, rest = _part_where(enough, _parts(logits, high, low), weights, above)
        if part.size == logits.size:
            break
        positions = part if positions is None else positions[part]
        logits, weights = logits[part], weights[part]
    order = np.argsort(-logits, kind="stable")
    cumulative = above + np.cumsum(weights[order])
    rank = int(np.searchsorted(cumulative / total, share, side=side))
    last = int(np.flatnonzero(weights[order])[-1])
    found = order[min(rank, last)]
    return int(found if positions is None else positions[found])


def _pivots(logits: Logits, weights: Float64, share: float) -> tuple[float, float]:
    """Two logits between which the cumulative weight is likely to be ``share`` of all."""
    sample = slice(None, None, logits.size // _SAMPLED)
    order = np.argsort(-logits[sample], kind="stable")
    sampled = logits[sample][order]
    cumulative = np.cumsum(weights[sample][order])
    rank = int(np.searchsorted(cumulative, share * cumulative[-1]))
    high = sampled[max(rank - _MARGIN, 0)]
    low = sampled[min(rank + _MARGIN, sampled.size - 1)]
    return high, low


def _parts(logits: Logits, high: float, low: float) -> Iterator[Ids]:
    """Positions of those above, between and below two logits."""
    yield np.flatnonzero(logits > high)
    yield np.flatnonzero((logits <= high) & (logits >= low))
    yield np.flatnonzero(logits < low)


def _part_where(
    enough: Callable[[float], bool], parts: Iterable[Ids], weights: Float64, above: float
) -> tuple[Ids, float, float]:
    """The first part that makes the weight enough, the weight above it and its own.

    The last one of any weight, where rounding leaves the sum of all short.
    """
    found = np.empty(0, np.int64), above, 0.0
    for part in parts:
        weight = float(weights[part].sum())
        if weight > 0.0:
            found = part, above, weight
        if enough(above + weight):
            break
        above += weight
    return found
