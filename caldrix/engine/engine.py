"""The engine: requests in, tokens out, one step at a time.

`running_engine` owns a nursery with one task, whose worker thread alone hands out the scheduler's
rows and calls the lane. A client is inside ``async with engine.submit(request)`` for as long as it
wants tokens: leaving that block, for whatever reason, frees its row before the next step. That is
the whole cancellation design; there are no handles to forget and no tasks to reap.

The thread goes from step to step by itself for as long as there is work, so that the lane never
waits for the event loop, nor the loop for the lane: while a step is computed, the loop sends the
tokens of the step before. Between steps, under a lock, what clients did meanwhile takes effect.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager
from typing import Self

import structlog
import trio

from caldrix.engine.errors import EngineFailed, EngineUnavailable, PromptTooLong, UnknownToken
from caldrix.engine.sampling import UnusableLogits
from caldrix.engine.scheduler import Scheduler, Work
from caldrix.engine.sequence import FinishReason, GenerationRequest, Sequence
from caldrix.models.lane import Executor
from caldrix.weights.tensor import Float32

_log = structlog.get_logger(__name__)

_WAKE_INTERVAL = 1 / 60
"""Seconds between handing out tokens, where steps are shorter than that.

A screen shows no more. Waking the event loop takes a processor from the step under way, and takes
it no longer for several tokens than for one.
"""


class Generation:
    """A request's tokens as they come: ``async for token in generation``, or `take` by `take`.

    Both end when the generation does, and ``finish_reason`` then says why. They raise EngineFailed
    or EngineUnavailable, after the tokens that were there before the failure.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._taken: deque[int] = deque()

    @property
    def prompt_tokens(self) -> int:
        """Tokens in the prompt."""
        return len(self._sequence.request.prompt)

    @property
    def seed(self) -> int:
        """The seed in use, the request's own or a fresh one."""
        return self._sequence.sampler.seed

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


class Engine:
    """Takes requests while its `running_engine` block lasts and it was not stopped."""

    def __init__(self, executor: Executor, *, context: int, rows: int, queue_depth: int) -> None:
        self.context = context
        self._executor = executor
        self._scheduler = Scheduler(rows, queue_depth)
        self._work_arrived = trio.Event()
        self._stopped = False
        self._thread = trio.CapacityLimiter(1)
        # Held to look at the scheduler or change it, and to make its sequences advance or end.
        self._lock = threading.Lock()
        self._loop = trio.lowlevel.current_trio_token()
        self._to_wake: deque[Sequence] = deque()
        self._handed_out = -math.inf

    @property
    def running(self) -> int:
        """Requests that are being computed."""
        with self._lock:
            return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        with self._lock:
            return self._scheduler.waiting

    @property
    def stopped(self) -> bool:
        """Whether it takes no more requests."""
        return self._stopped

    @asynccontextmanager
    async def submit(self, request: GenerationRequest) -> AsyncIterator[Generation]:
        """Queues a request; inside the block its tokens can be read.

        Raises PromptTooLong, UnknownToken, QueueFull and EngineUnavailable at once.
        """
        if self._stopped:
            raise EngineUnavailable
        if len(request.prompt) >= self.context:
            raise PromptTooLong(len(request.prompt), self.context)
        self._check_tokens(request.prompt)
        sequence = Sequence(request, self.context)
        with self._lock:
            self._scheduler.admit(sequence)
        self._work_arrived.set()
        try:
            yield Generation(sequence)
        finally:
            sequence.abandoned = True

    def _check_tokens(self, prompt: tuple[int, ...]) -> None:
        vocab_size = self._executor.vocab_size
        for token in (max(prompt), min(prompt)):
            if not 0 <= token < vocab_size:
                raise UnknownToken(token, vocab_size)

    def stop(self) -> None:
        """Takes no more requests, and ends those it has with EngineUnavailable."""
        self._stopped = True
        with self._lock:
            ended = [each for each in self._scheduler.everyone() if not each.ended]
            for sequence in ended:
                sequence.fail(EngineUnavailable())
        for sequence in ended:
            sequence.wake_reader()

    async def _run(self) -> None:
        while True:
            await self._work_arrived.wait()
            self._work_arrived = trio.Event()
            await trio.to_thread.run_sync(self._step_while_needed, limiter=self._thread)

    def _step_while_needed(self) -> None:
        """Runs in the worker thread: one step after the other, until there is nothing to do."""
        work = self._turn_over()
        while work:
            picks = self._compute(work)
            with self._lock:
                for item, pick in zip(work, picks, strict=True):
                    item.advance(pick)
            following = self._turn_over()
            self._hand_out(work, soon=not _goes_on(work, following))
            work = following

    def _turn_over(self) -> SequenceOf[Work]:
        with self._lock:
            self._scheduler.turn_over()
            return self._scheduler.plan()

    def _hand_out(self, work: SequenceOf[Work], *, soon: bool) -> None:
        """Has the event loop wake the readers: now if it must be ``soon``, else within a moment."""
        self._to_wake.extend(item.sequence for item in work)
        now = time.monotonic()
        if soon or now - self._handed_out >= _WAKE_INTERVAL:
            self._handed_out = now
            self._loop.run_sync_soon(self._wake_readers, idempotent=True)

    def _wake_readers(self) -> None:
        while self._to_wake:
            self._to_wake.popleft().wake_reader()

    def _compute(self, work: SequenceOf[Work]) -> list[int | EngineFailed | None]:
        """A step of the lane, then each sequence's pick; None where no logits were wanted."""
        try:
            logits = iter(self._executor.step([item.slice for item in work]))
        except Exception:  # noqa: BLE001  # whatever broke, the next requests deserve their chance
            _log.exception("step_failed", sequences=len(work))
            return [EngineFailed() for _ in work]
        return [_pick(item, next(logits)) if item.slice.wanted else None for item in work]


def _goes_on(work: SequenceOf[Work], following: SequenceOf[Work]) -> bool:
    """Whether the next step is like this one: the same sequences, and a token of each."""
    return [item.sequence for item in work] == [item.sequence for item in following] and all(
        len(item.slice.tokens) == 1 for item in (*work, *following)
    )


def _pick(item: Work, logits: Float32) -> int | EngineFailed:
    try:
        return item.sequence.sampler.pick(logits)
    except UnusableLogits:
        _log.error("unusable_logits", row=item.slice.row, position=item.slice.start)
        return EngineFailed()


@asynccontextmanager
async def running_engine(
    executor: Executor, *, context: int, rows: int = 1, queue_depth: int = 64
) -> AsyncIterator[Engine]:
    """An engine over a compiled model for as long as the block lasts.

    Leaving the block stops the engine: requests still inside get EngineUnavailable.
    """
    engine = Engine(executor, context=context, rows=rows, queue_depth=queue_depth)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine._run)
        try:
            yield engine
        finally:
            engine.stop()
            nursery.cancel_scope.cancel()


__all__ = ["Engine", "FinishReason", "Generation", "GenerationRequest", "running_engine"]
