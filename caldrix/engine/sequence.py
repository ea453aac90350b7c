"""One request inside the engine: what was asked for, and how far it has come."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Sequence as SequenceOf
from enum import Enum

import numpy as np
import trio
from attrs import field, frozen, validators

from caldrix.engine.rows import Row
from caldrix.engine.sampling import Sampler, SamplingSettings
from caldrix.engine.telemetry import Timeline
from caldrix.errors import CaldrixError
from caldrix.models.lane import Slice
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
        self.timeline = Timeline()
        self.tokens = array("q", request.prompt)
        """The prompt, and what was generated after it."""
        self.arrival = 0
        """Its place in the order in which sequences were admitted."""
        self.row: Row | None = None
        self.isolated = False
        """Its next token is computed in no company: a step that it took part in has failed."""
        self.abandoned = False
        self.finish_reason: FinishReason | None = None
        self.error: CaldrixError | None = None
        # Never more than ``limit``: bounded, and no reader can stall the engine.
        self._unread: deque[int] = deque()
        self._news = trio.Event()

    @property
    def ended(self) -> bool:
        """Whether the engine has nothing more to do for it."""
        return self.abandoned or self.finish_reason is not None or self.error is not None

    @property
    def speculates(self) -> bool:
        """Whether its tokens may be guessed ahead: all but sampled ones with a chosen seed."""
        return self.sampler.greedy or self.request.sampling.seed is None

    @property
    def generated(self) -> int:
        """Tokens that came out."""
        return len(self.tokens) - len(self.request.prompt)

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be picked."""
        return len(self.tokens) - (0 if self.row is None else self.row.length)

    @property
    def decoding(self) -> bool:
        """Whether all but the last token is computed, and that one is an answer's."""
        return self.missing == 1 and self.generated > 0

    def start(self, row: Row) -> None:
        """Takes a row, which holds a part of the prompt already or none of it."""
        self.row = row
        if self.timeline.started is None:
            self.timeline.started = time.monotonic()
            self.timeline.cached_tokens = row.length

    def next_slice(self, most: int, draft: SequenceOf[int] = ()) -> Slice:
        """The next at most ``most`` tokens to compute, with logits if they are the last ones.

        A ``draft`` of tokens that may follow is computed after the last one, each with its logits.
        """
        assert self.row is not None
        start = self.row.length
        stop = min(len(self.tokens), start + most)
        whole = stop == len(self.tokens)
        assert whole or not draft
        tokens = np.array((*self.tokens[start:stop], *draft), np.int64)
        return Slice(self.row.number, start, tokens, wanted=1 + len(draft) if whole else 0)

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

    def begin_anew(self) -> None:
        """Forgets what its row holds: all is computed again, in no company."""
        assert self.row is not None
        self.row.length = 0
        self.timeline.cached_tokens = 0
        self.isolated = True

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
