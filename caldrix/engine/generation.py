"""A request for tokens: what was asked for, which tokens came out, and who reads them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence as SequenceOf
from enum import Enum
from typing import Self

import trio
from attrs import field, frozen, validators

from caldrix.engine.sampling import Sampler, SamplingSettings
from caldrix.engine.sequence import Sequence
from caldrix.engine.telemetry import Timeline
from caldrix.models.draw import Draw
from caldrix.models.lane import Features, Slice
from caldrix.weights.tensor import Float32

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

    prompt: tuple[int, ...] = field(validator=validators.min_len(1), repr=False)
    max_tokens: int | None = field(default=None, validator=validators.optional(validators.ge(1)))
    """None runs until the model ends or the context is full."""
    sampling: SamplingSettings = field(factory=SamplingSettings)
    end_tokens: frozenset[int] = frozenset()
    """Tokens that end the generation; they are neither handed out nor counted."""
    name: str | None = None
    """What the log calls the request where a step fails on it."""
    features: Features | None = field(default=None, repr=False)
    """What stands in for the embeddings of some of the prompt's tokens, as of an image."""


class GeneratedSequence(Sequence):
    """A prompt's progress, and the tokens that came out after it."""

    def __init__(self, request: GenerationRequest, context: int) -> None:
        super().__init__(request.prompt, request.name, features=request.features)
        self.request = request
        self.sampler = Sampler(request.sampling, request.prompt)
        room = context - self.prompt_tokens
        self.limit = room if request.max_tokens is None else min(room, request.max_tokens)
        self.finish_reason: FinishReason | None = None
        # Never more than ``limit``: bounded, and no reader can stall the engine.
        self._unread: deque[int] = deque()

    @property
    def complete(self) -> bool:
        """Whether the model ended its text, or the last token came that it may have."""
        return self.finish_reason is not None

    @property
    def speculates(self) -> bool:
        """Whether its tokens may be guessed ahead: all but sampled ones with a chosen seed.

        A draft model would not see what stands in for tokens.
        """
        if self.features is not None:
            return False
        return self.sampler.greedy or self.request.sampling.seed is None

    @property
    def longest_draft(self) -> int:
        """All but the last token that it is still to be given."""
        return self.limit - self.generated - 1

    def pick(self, logits: Float32, draft: SequenceOf[int] = ()) -> list[int]:
        """Picks from each row of ``[1 + len(draft), vocab_size]`` logits for as long as they hold.

        The logits after a draft token mean something only if that token is what was picked before
        it, so the tokens are those of picking one at a time. Raises UnusableLogits.
        """
        picked: list[int] = []
        for index, row in enumerate(logits):
            token = self.sampler.pick(row)
            picked.append(token)
            if index == len(draft) or token != draft[index] or self._is_last(token, len(picked)):
                break
        return picked

    def draw(self) -> Draw | None:
        """Of a sampled token, none of a greedy one."""
        return None if self.sampler.greedy else self.sampler.draw()

    def take_drawn(self, token: int) -> list[int]:
        """The token that the lane picked. Raises UnusableLogits where it found none."""
        self.sampler.drawn(token)
        return [token]

    def _is_last(self, token: int, picked: int) -> bool:
        return token in self.request.end_tokens or self.generated + picked == self.limit

    def advance(self, computed: Slice, picked: SequenceOf[int], drafted: int = 0) -> int:
        """Records a computed slice, and the tokens picked after it if logits were wanted.

        The last ``drafted`` of the slice's tokens were a draft. Returns how many of them are those
        that were picked; the others are as good as not computed.
        """
        assert self.row is not None
        given = [token for token in picked if token not in self.request.end_tokens]
        known = len(computed.tokens) - drafted
        # Only the last one given can differ from its draft token: `pick` went no further.
        accepted = sum(map(int.__eq__, given, computed.tokens[known:].tolist()))
        self.row.length = computed.start + known + accepted
        self.timeline.proposed_tokens += drafted
        self.timeline.accepted_tokens += accepted
        if picked:
            self.isolated = False
            self._give(given)
            if len(given) < len(picked):
                self.finish(FinishReason.STOP)
            elif self.generated == self.limit:
                self.finish(FinishReason.LENGTH)
        return accepted

    def _give(self, tokens: SequenceOf[int]) -> None:
        now = time.monotonic()
        if tokens:
            self.timeline.first_token = self.timeline.first_token or now
            self.timeline.last_token = now
        self.tokens.extend(tokens)
        self._unread.extend(tokens)

    def finish(self, reason: FinishReason) -> None:
        """Ends the sequence as it should end."""
        self.finish_reason = reason

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
            await self.news()


class Generation:
    """A request's tokens as they come: ``async for token in generation``, or `take` by `take`.

    Both end when the generation does, and ``finish_reason`` then says why. They raise EngineFailed
    or EngineUnavailable, after the tokens that were there before the failure.
    """

    def __init__(self, sequence: GeneratedSequence) -> None:
        self._sequence = sequence
        self._taken: deque[int] = deque()

    @property
    def prompt_tokens(self) -> int:
        """Tokens in the prompt."""
        return self._sequence.prompt_tokens

    @property
    def seed(self) -> int:
        """The seed in use, the request's own or a fresh one."""
        return self._sequence.sampler.seed

    @property
    def timeline(self) -> Timeline:
        """When it came to pass, and what it counted; final once the block is left."""
        return self._sequence.timeline

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the generation ended; None before its end."""
        return self._sequence.finish_reason

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> int:
        if not self._taken:
            self._taken.extend(await self.take())
        if not self._taken:
            raise StopAsyncIteration
        return self._taken.popleft()

    async def take(self) -> list[int]:
        """Some of the tokens that are there, waiting for the first; empty after the last."""
        return await self._sequence.take()
