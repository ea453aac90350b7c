"""One request inside the engine: what was asked for, and how far it has come."""

from __future__ import annotations

from collections import deque
from enum import Enum

import numpy as np
import trio
from attrs import field, frozen, validators

from caldrix.engine.sampling import Sampler, SamplingSettings
from caldrix.errors import CaldrixError
from caldrix.models.lane import Slice

_MOST_TAKEN = 64
"""Tokens taken at once, so that a reader that has fallen behind doesn't hold up the others."""


class FinishReason(Enum):
    """Why a generation ended by itself."""

    STOP = "stop"
    """The model ended its text."""
    LENGTH = "length"
    """``max_tokens`` was reached, or the context is full."""


@frozen
class GenerationRequest:
    """Token ids and settings; nothing of the protocol they came by."""

    prompt: tuple[int, ...] = field(validator=validators.min_len(1))
    max_tokens: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    """None runs until the model ends or the context is full."""
    sampling: SamplingSettings = field(factory=SamplingSettings)
    end_tokens: frozenset[int] = frozenset()
    """Tokens that end the generation; they are neither handed out nor counted."""


class Sequence:
    """A request's progress: which positions are computed, which tokens came out.

    The engine's own; a client sees its `Generation`. The engine's thread makes it advance; its
    reader, in the event loop, sees a token from then on, and is woken separately.
    """

    def __init__(self, request: GenerationRequest, context: int) -> None:
        self.request = request
        self.sampler = Sampler(request.sampling, request.prompt)
        room = context - len(request.prompt)
        self.limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self.row: int | None = None
        self.abandoned = False
        self.finish_reason: FinishReason | None = None
        self.error: CaldrixError | None = None
        self._tokens = list(request.prompt)
        self._computed = 0
        # Never more than ``limit``: bounded, and no reader can stall the engine.
        self._unread: deque[int] = deque()
        self._news = trio.Event()

    @property
    def ended(self) -> bool:
        """Whether the engine has nothing more to do for it."""
        return self.abandoned or self.finish_reason is not None or self.error is not None

    def next_slice(self, most: int) -> Slice:
        """The next at most ``most`` tokens to compute, with logits if they are the last ones."""
        assert self.row is not None
        stop = min(len(self._tokens), self._computed + most)
        tokens = np.array(self._tokens[self._computed : stop], np.int64)
        return Slice(self.row, self._computed, tokens, wanted=int(stop == len(self._tokens)))

    def advance(self, computed: Slice, token: int | None) -> None:
        """Records a computed slice, and the token picked after it if logits were wanted."""
        self._computed += len(computed.tokens)
        if token is None:
            return
        if token in self.request.end_tokens:
            self.finish(FinishReason.STOP)
            return
        self._tokens.append(token)
        self._unread.append(token)
        if len(self._tokens) - len(self.request.prompt) == self.limit:
            self.finish(FinishReason.LENGTH)

    def finish(self, reason: FinishReason) -> None:
        """Ends the sequence as it should end."""
        self.finish_reason = reason

    def fail(self, error: CaldrixError) -> None:
        """Ends the sequence with an error that its reader meets after the tokens it has."""
        self.error = error

    async def take(self) -> list[int]:
        """Tokens that came, waiting for the first; empty after the last. Raises ``error``."""
        if self._unread or self.ended:
            await trio.lowlevel.checkpoint()
        while True:
            # In this order, for the last token comes before the end.
            ended = self.ended
            if self._unread:
                return [self._unread.popleft() for _ in range(min(len(self._unread), _MOST_TAKEN))]
            if self.error is not None:
                raise self.error
            if ended:
                return []
            self._news = trio.Event()
            await self._news.wait()

    def wake_reader(self) -> None:
        """Lets the reader look for what has come. Only in the event loop."""
        self._news.set()
