"""A request for a reading: the logits that follow its prompt, at a few tokens.

Nothing is generated. All else is as for generated tokens: the queue, rows and their reuse, slices,
company, and being computed again by itself where a step fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as SequenceOf

import numpy as np
import trio
from attrs import evolve, field, frozen, validators

from caldrix.engine.kept import Kept
from caldrix.engine.sampling import UnusableLogits
from caldrix.engine.sequence import Sequence
from caldrix.engine.telemetry import Timeline
from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32


@frozen
class ReadingRequest:
    """Token ids: a prompt's, and those whose logits are wanted after its last one."""

    prompt: tuple[int, ...] = field(validator=validators.min_len(1), repr=False)
    token_ids: tuple[int, ...] = field(validator=validators.min_len(1))
    """Of the model's vocabulary."""
    name: str | None = None
    """What the log calls the request where a step fails on it."""
    kept: Kept | None = None
    """What it begins with, if the prompts of other requests begin so too."""


class ReadSequence(Sequence):
    """A prompt's progress, and what was read after it."""

    def __init__(self, request: ReadingRequest) -> None:
        super().__init__(request.prompt, request.name, kept=request.kept)
        self._token_ids = np.array(request.token_ids, np.int64)
        self._picked: Float32 | None = None
        self._logits: Float32 | None = None

    @property
    def complete(self) -> bool:
        """Whether the logits are there."""
        return self._logits is not None

    def next_slice(self, most: int, draft: SequenceOf[int] = ()) -> Slice:
        """As of any sequence; a vocabulary's other logits need not be computed."""
        return evolve(super().next_slice(most, draft), only=self._token_ids)

    def pick(self, logits: Float32, draft: SequenceOf[int] = ()) -> list[int]:
        """Keeps the wanted ones of ``[1, vocab_size]`` logits; there are no tokens to pick.

        Raises UnusableLogits where one of them is no number or more than finite.
        """
        assert not draft
        if not len(logits):
            return []
        wanted: Float32 = logits[0, self._token_ids]
        # NaN fails it too; what is impossible, minus infinity, is not for here to tell.
        if not (wanted < np.inf).all():
            raise UnusableLogits
        self._picked = wanted
        return []

    def advance(self, computed: Slice, picked: SequenceOf[int], drafted: int = 0) -> int:
        """Records a computed slice, and what was read if it was the prompt's last."""
        assert self.row is not None
        assert not drafted
        self.row.length = computed.start + len(computed.tokens)
        if computed.wanted:
            self.timeline.first_token = self.timeline.last_token = time.monotonic()
            self._logits = self._picked
        return 0

    async def take(self) -> Float32:
        """The logits, waiting for them. Raises ``error``."""
        await trio.lowlevel.checkpoint()
        while not self.ended:
            await self.news()
        if self.error is not None:
            raise self.error
        assert self._logits is not None
        return self._logits


class Reading:
    """What is read after a prompt, once it is computed."""

    def __init__(self, sequence: ReadSequence) -> None:
        self._sequence = sequence

    @property
    def prompt_tokens(self) -> int:
        """Tokens in the prompt."""
        return self._sequence.prompt_tokens

    @property
    def timeline(self) -> Timeline:
        """When it came to pass; ``first_token`` and ``last_token`` are when it was read."""
        return self._sequence.timeline

    async def logits(self) -> Float32:
        """The logits of the request's ``token_ids``, float32 ``[len(token_ids)]``, in their order.

        None is NaN or more than finite; all may be minus infinity. Raises EngineFailed or
        EngineUnavailable.
        """
        return await self._sequence.take()
