"""The engine: requests in, tokens out, one step at a time.

`running_engine` owns a nursery with one task, which alone hands out the scheduler's rows and calls
the lane. A client is inside ``async with engine.submit(request)`` for as long as it wants tokens:
leaving that block, for whatever reason, frees its row before the next step. That is the whole
cancellation design; there are no handles to forget and no tasks to reap.

The lane computes in one worker thread, so the event loop never waits for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
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


class Generation:
    """A request's tokens as they come: ``async for token in generation``.

    The iteration ends when the generation does, and ``finish_reason`` then says why. It raises
    EngineFailed or EngineUnavailable, after the tokens that were there before the failure.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence

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
        try:
            return await self._sequence.inbox.receive()
        except trio.EndOfChannel:
            if self._sequence.error is not None:
                raise self._sequence.error from None
            raise StopAsyncIteration from None


class Engine:
    """Takes requests while its `running_engine` block lasts and it was not stopped."""

    def __init__(self, executor: Executor, *, context: int, rows: int, queue_depth: int) -> None:
        self.context = context
        self._executor = executor
        self._scheduler = Scheduler(rows, queue_depth)
        self._work_arrived = trio.Event()
        self._stopped = False
        self._thread = trio.CapacityLimiter(1)

    @property
    def running(self) -> int:
        """Requests that are being computed."""
        return self._scheduler.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
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
        self._scheduler.admit(sequence)
        self._work_arrived.set()
        try:
            yield Generation(sequence)
        finally:
            sequence.abandoned = True
            sequence.inbox.close()

    def _check_tokens(self, prompt: tuple[int, ...]) -> None:
        vocab_size = self._executor.vocab_size
        for token in (max(prompt), min(prompt)):
            if not 0 <= token < vocab_size:
                raise UnknownToken(token, vocab_size)

    def stop(self) -> None:
        """Takes no more requests, and ends those it has with EngineUnavailable."""
        self._stopped = True
        for sequence in self._scheduler.everyone():
            if not sequence.ended:
                sequence.fail(EngineUnavailable())
        self._work_arrived.set()

    async def _run(self) -> None:
        while True:
            self._scheduler.turn_over()
            work = self._scheduler.plan()
            if not work:
                self._work_arrived = trio.Event()
                await self._work_arrived.wait()
                continue
            await self._step(list(work))

    async def _step(self, work: list[Work]) -> None:
        try:
            tokens = await trio.to_thread.run_sync(self._compute, work, limiter=self._thread)
        except Exception:  # noqa: BLE001  # whatever broke, the next requests deserve their chance
            _log.exception("step_failed", sequences=len(work))
            for item in work:
                if not item.sequence.ended:
                    item.sequence.fail(EngineFailed())
            return
        for item, token in zip(work, tokens, strict=True):
            if item.sequence.ended:
                continue
            if isinstance(token, UnusableLogits):
                _log.error("unusable_logits", row=item.slice.row, position=item.slice.start)
                item.sequence.fail(EngineFailed())
            else:
                item.sequence.advance(item.slice, token)

    def _compute(self, work: list[Work]) -> list[int | UnusableLogits | None]:
        """Runs in the worker thread: a step of the lane, then each sequence's pick."""
        logits = iter(self._executor.step([item.slice for item in work]))
        return [_pick(item, next(logits)) if item.slice.wanted else None for item in work]


def _pick(item: Work, logits: Float32) -> int | UnusableLogits:
    try:
        return item.sequence.sampler.pick(logits)
    except UnusableLogits as error:
        return error


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
