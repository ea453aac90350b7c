"""A request while it is answered: what became of it, and the one moment at which it ends.

A watch is opened when a request's head is there, goes along with it, and is reported when it ends,
whatever ended it. The counts that it gives are those of the answer's usage, so a record, the
metrics and the client never disagree.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog
from attrs import define, evolve, field, frozen

from caldrix.engine.engine import Generation, GenerationRequest, Reading
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.telemetry import Timeline

LEFT = 499
"""The status of a request whose connection ended before its answer did; nginx has it so.

Nobody is sent it: the client had left, or was cut off because it did not read its answer.
"""


@frozen
class TokenCounts:
    """The tokens of a request."""

    prompt: int
    completion: int
    cached: int
    """Tokens of the prompt that were not computed, as a row held them already."""
    proposed: int
    """Draft tokens that were guessed ahead."""
    accepted: int
    """Those of them that plain decoding gives as well."""


@define(eq=False)
class RequestWatch:
    """One request, from its head to its end; ``route`` is the path that was asked."""

    route: str
    _report: Callable[[RequestWatch], None] | None = None
    """Told of the end; without it nobody is."""
    received: float = field(factory=time.time, init=False)
    """Seconds since 1970."""
    began: float = field(factory=time.monotonic, init=False)
    ended: float | None = field(default=None, init=False)
    """Both in seconds of `time.monotonic`, as the timeline's are."""
    status: int | None = field(default=None, init=False)
    """What the client was told, on a stream by its last event; None before the end."""
    answer_id: str | None = field(default=None, init=False)
    """None if the engine never took the request."""
    request: GenerationRequest | None = field(default=None, init=False)
    generation: Generation | None = field(default=None, init=False)
    readings: list[Reading] = field(factory=list, init=False, repr=False)
    """Those that the engine took so far, if readings are what was asked for."""
    left_out: int = field(default=0, init=False)
    """Tokens of readings that were kept from one before, and count there alone."""
    tokens: list[int] = field(factory=list, init=False, repr=False)
    """The answer's tokens so far."""
    finish_reason: str | None = field(default=None, init=False)
    ran_out: bool = field(default=False, init=False)
    """Whether the generation ended by itself, and no stop string did it."""
    _counts: TokenCounts | None = field(default=None, init=False)

    @contextmanager
    def open(self) -> Iterator[None]:
        """The request lasts as long as the block at most."""
        structlog.contextvars.clear_contextvars()
        try:
            yield
        except Exception:
            self.end(500)
            raise
        finally:
            self.end(LEFT)

    def begin(self, answer_id: str, request: GenerationRequest, generation: Generation) -> None:
        """The engine has taken it. What is logged from here on carries the answer's id."""
        self.request, self.generation = request, generation
        self._take(answer_id)

    def begin_reading(self, answer_id: str, reading: Reading) -> None:
        """The engine has taken the first, or the next, of the readings that the answer needs."""
        self.readings.append(reading)
        self._take(answer_id)

    def _take(self, answer_id: str) -> None:
        self.answer_id = answer_id
        structlog.contextvars.bind_contextvars(id=answer_id)

    def leave_out(self, tokens: int) -> None:
        """So many cached tokens of the last reading don't count: an earlier one's do."""
        self.left_out += tokens

    def finish(self, reason: str, *, ran_out: bool) -> TokenCounts:
        """The answer is complete; returns its counts, which do not change any more."""
        assert self.timelines
        self.finish_reason, self.ran_out = reason, ran_out
        self._counts = self._count()
        return self._counts

    def end(self, status: int) -> None:
        """The request is over. Only the first end counts."""
        if self.status is not None:
            return
        self.status, self.ended = status, time.monotonic()
        if self._report is not None:
            self._report(self)

    @property
    def counts(self) -> TokenCounts | None:
        """The counts, up to now if it is not complete; None if the engine never took it."""
        if self._counts is None and self.timelines:
            return self._count()
        return self._counts

    @property
    def computed(self) -> Sequence[Generation | Reading]:
        """All that the engine has taken for it, in order: its generation, or its readings."""
        return self.readings if self.generation is None else [self.generation]

    @property
    def timelines(self) -> Sequence[Timeline]:
        """Of all that the engine has taken for it."""
        return [computed.timeline for computed in self.computed]

    @property
    def sampling(self) -> SamplingSettings | None:
        """The settings in force; their seed is the one used, None if nothing was drawn."""
        if self.request is None or self.generation is None:
            return None
        settings = self.request.sampling
        return evolve(settings, seed=self.generation.seed if settings.temperature else None)

    def _count(self) -> TokenCounts:
        # In this order, for the engine's thread may be about to count both.
        accepted = sum(timeline.accepted_tokens for timeline in self.timelines)
        return TokenCounts(
            prompt=sum(computed.prompt_tokens for computed in self.computed) - self.left_out,
            completion=len(self.tokens),
            cached=sum(timeline.cached_tokens for timeline in self.timelines) - self.left_out,
            proposed=sum(timeline.proposed_tokens for timeline in self.timelines),
            accepted=accepted,
        )
