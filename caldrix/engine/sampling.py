"""Picking the next token from logits, on the CPU.

The order is: repetition penalty, top-k, top-p, min-p, temperature, one draw. All arithmetic is in
float64, or as good as if it were: see `Candidates`. A lane that picks sampled tokens where it
computes is told how by a `Draw`.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable

import numpy as np
from attrs import evolve, frozen

from caldrix.engine.candidates import Candidates
from caldrix.engine.cumulative import Float64, Ids, Logits
from caldrix.engine.scratch import scratch
from caldrix.errors import CaldrixError
from caldrix.models.draw import Draw
from caldrix.weights.tensor import Float32

_SEED_BITS = 53
"""Of a seed that is drawn: JSON readers that keep numbers in float64 give it back as it was."""


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

    def __init__(self) -> None:
        super().__init__("the model gave logits that are not finite numbers")


class Sampler:
    """Picks one sequence's tokens.

    ``seed`` is the seed in use: with it, the same settings and the same logits give the same
    tokens. One uniform number is drawn for each token that is sampled, none for a greedy one.
    """

    def __init__(self, settings: SamplingSettings, prompt: Iterable[int]) -> None:
        self.seed = secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed
        self._settings = settings
        self._random = np.random.Generator(np.random.PCG64(self.seed))
        self._uniform: float | None = None
        """Drawn already, for the next token."""
        penalizes = settings.repetition_penalty != 1.0
        self._penalty = (
            RepetitionPenalty(settings.repetition_penalty, prompt) if penalizes else None
        )

    @property
    def greedy(self) -> bool:
        """Whether the best token is picked, and nothing is ever drawn."""
        return self._settings.temperature == 0.0

    def pick(self, logits: Float32) -> int:
        """The next token, from float32 ``[vocab_size]`` logits. Raises UnusableLogits."""
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            raise UnusableLogits
        if self._penalty is None and self.greedy:
            return best
        # The smallest temperatures and penalties overflow to infinities that mean what they say.
        with np.errstate(over="ignore"):
            if self._penalty is None:
                return self._choose(logits, logits)
            token = self._choose(*self._penalty.applied(logits))
        self._penalty.add(token)
        return token

    def draw(self) -> Draw:
        """How another is to pick the next token; the same until it was `drawn`. Not if greedy."""
        settings = self._settings
        draw = Draw(
            self._peek(),
            settings.temperature,
            top_k=settings.top_k,
            top_p=settings.top_p,
            min_p=settings.min_p,
        )
        if self._penalty is None:
            return draw
        penalty = settings.repetition_penalty
        return evolve(draw, repetition_penalty=penalty, seen=self._penalty.seen)

    def drawn(self, token: int) -> None:
        """Another has picked ``token``. Raises UnusableLogits for a negative one: it could not."""
        if token < 0:
            raise UnusableLogits
        self._uniform = None
        if self._penalty is not None:
            self._penalty.add(token)

    def _peek(self) -> float:
        """The next token's random number."""
        if self._uniform is None:
            self._uniform = self._random.random()
        return self._uniform

    def _choose(self, logits: Logits, rounded: Float32) -> int:
        settings = self._settings
        if self.greedy:
            return int(logits.argmax())
        uniform = self._peek()
        self._uniform = None
        if settings.top_k == 1:
            return int(logits.argmax())
        candidates = Candidates(logits, rounded)
        if settings.top_k:
            candidates = candidates.best(settings.top_k)
        if settings.top_p < 1.0:
            candidates = candidates.nucleus(settings.top_p)
        if settings.min_p > 0.0:
            candidates = candidates.at_least(settings.min_p)
        return candidates.draw(uniform, settings.temperature)


class RepetitionPenalty:
    """Makes the tokens of a sequence less likely to come again; more likely, below 1."""

    def __init__(self, penalty: float, prompt: Iterable[int]) -> None:
        self._penalty = penalty
        self._known = set(prompt)
        self._count = len(self._known)
        self._seen: Ids = np.fromiter(self._known, np.int64, self._count)

    @property
    def seen(self) -> Ids:
        """The sequence's tokens, each once; what is added later does not show in it."""
        return self._seen[: self._count]

    def add(self, token: int) -> None:
        """Counts ``token`` among those of the sequence."""
        if token in self._known:
            return
        self._known.add(token)
        if self._count == self._seen.size:
            self._seen = np.resize(self._seen, max(64, 2 * self._count))
        self._seen[self._count] = token
        self._count += 1

    def applied(self, logits: Float32) -> tuple[Float64, Float32]:
        """Copies in which what was seen is divided by the penalty, or multiplied if negative.

        The first is exact, but for what exceeds float64; the second is rounded to float32. Both
        are the thread's scratch, and last until the next call.
        """
        seen = self.seen
        values = logits[seen].astype(np.float64)
        values = np.where(values > 0, values / self._penalty, values * self._penalty)
        penalized = scratch("penalized", logits.size, np.float64)
        rounded = scratch("penalized", logits.size, np.float32)
        for copy in (penalized, rounded):
            largest = np.finfo(copy.dtype).max
            np.copyto(copy, logits)
            copy[seen] = np.clip(values, -largest, largest)
        return penalized, rounded
