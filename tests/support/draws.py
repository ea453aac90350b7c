"""What a `Draw` means, in float64 and plainly; and a scripted lane that picks by it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from caldrix.models.draw import Draw
from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32
from tests.support.scripted import ScriptedExecutor

Exact = npt.NDArray[np.float64]
Which = npt.NDArray[np.bool_]

ROUNDING = 2e-5
"""What sums and exponents in float32 may be off by, relatively."""
_FLOAT32 = np.finfo(np.float32)


@frozen(eq=False)
class Candidates:
    """The tokens that may be drawn: ``sure`` are kept, whatever rounding does, ``maybe`` by it."""

    logits: Exact
    """After the penalty, which is in float32."""
    sure: Which
    maybe: Which


def candidates(logits: Float32, draw: Draw) -> Candidates:
    """Those that a draw is among, of ``[vocab_size]`` logits with a finite best."""
    penalized = logits.copy()
    with np.errstate(over="ignore", under="ignore"):
        penalty = np.float32(
            np.clip(draw.repetition_penalty, float(_FLOAT32.tiny), float(_FLOAT32.max))
        )
        for token in draw.seen:
            value = penalized[token]
            if np.isfinite(value):
                value = value / penalty if value > 0 else value * penalty
                penalized[token] = np.clip(value, _FLOAT32.min, _FLOAT32.max)
    x = penalized.astype(np.float64)
    sure = np.isfinite(x)
    if 0 < draw.top_k < x.size:
        sure &= x >= np.sort(x)[-draw.top_k]
    maybe = sure.copy()
    below = x - x.max()
    weights = np.where(sure, np.exp(below), 0.0)
    if draw.top_p < 1.0:
        order = np.argsort(-x, kind="stable")
        cumulative = np.cumsum(weights[order]) / weights.sum()
        first_of_equals = np.searchsorted(-x[order], -x, side="left")
        better = np.concatenate([[0.0], cumulative])[first_of_equals]
        sure &= (better < draw.top_p - ROUNDING) | (below == 0.0)
        # Those that weigh as much as the last are kept with it.
        last = below[maybe & (better < draw.top_p + ROUNDING)].min()
        maybe &= below >= last - ROUNDING
    if draw.min_p > 0.0:
        least = np.log(draw.min_p)
        slack = 1e-6 * abs(least)
        sure &= below >= least + slack
        maybe &= below >= least - slack
    return Candidates(x, sure, maybe)


@np.errstate(over="ignore", under="ignore")
def probabilities(kept: Candidates, draw: Draw) -> Exact:
    """Of each token, if those are kept that ``maybe`` has."""
    offsets = np.where(kept.maybe, kept.logits - kept.logits.max(), -np.inf)
    weights: Exact = np.zeros_like(offsets)
    np.exp(offsets / draw.temperature, where=kept.maybe, out=weights)
    weights /= weights.sum()
    return weights


def pick(logits: Float32, draw: Draw) -> int:
    """The token that a draw gives, but for rounding; -1 for logits that are unusable."""
    if not (logits < np.inf).all() or logits.max() == -np.inf:
        return -1
    share = np.cumsum(probabilities(candidates(logits, draw), draw))
    return int(np.searchsorted(share, draw.uniform * share[-1], side="right"))


class PicksTokens(ScriptedExecutor):
    """A scripted lane that picks sampled tokens itself; to be mixed into others."""

    picks = True

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]  # whatever the other takes
        self.picked: list[int] = []
        self.draws: list[Draw] = []
        """All that it was given, those of failed steps too."""

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.picked = []
        self.draws += [each.draw for each in slices if each.draw is not None]
        logits = super().step(slices)
        returned = np.ones(len(logits), bool)
        first = 0
        for each in slices:
            if each.draw is not None:
                self.picked.append(pick(logits[first], each.draw))
                returned[first] = False
            first += each.wanted
        return logits[returned]
