"""Logits as models give them, and as they hardly do."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_STANDING_OUT = 200


def peaked(random: np.random.Generator, size: int) -> Float64:
    """As a language model has them: few that stand out by a power law, over a wide bulk."""
    logits = random.standard_normal(size) * 2.5
    best = random.choice(size, min(_STANDING_OUT, size), replace=False)
    logits[best] = 22.0 - 2.6 * np.log(np.arange(1, best.size + 1))
    return logits


def flat(random: np.random.Generator, size: int) -> Float64:
    """Standard normal: no token of a large vocabulary stands out."""
    return random.standard_normal(size)
