"""One sampled token, as a lane is asked for it that picks where it computes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

_NONE = np.empty(0, np.int64)


@frozen(eq=False)
class Draw:
    """How a token is picked from its logits, and the random number that decides.

    In this order: the penalty, top-k, top-p, min-p, the temperature, the draw. A cut keeps every
    token tied with the last one that it keeps, or within rounding of it. Candidates are walked in
    the vocabulary's order, and sums are in 32-bit floats. So the same logits and the same draw
    give the same token, and not always the one that a pick on the CPU gives.
    """

    uniform: float
    """In [0, 1)."""
    temperature: float
    """Finite, > 0."""
    top_k: int = 0
    """>= 0; 0 keeps every token."""
    top_p: float = 1.0
    """In (0, 1]; 1 keeps every token."""
    min_p: float = 0.0
    """In [0, 1]; 0 is off."""
    repetition_penalty: float = 1.0
    """Finite, > 0; 1 is off."""
    seen: npt.NDArray[np.int64] = field(default=_NONE, repr=False)
    """Ids that the penalty is for, each once."""
