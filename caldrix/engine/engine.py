"""The engine: requests in, tokens or readings out, one step at a time.

`running_engine` owns a nursery with one task, whose worker thread alone hands out the scheduler's
rows and calls the lane. A client is inside ``async with engine.submit(request)`` for as long as it
wants tokens, or inside ``engine.read(request)`` until it has its logits: leaving that block, for
whatever reason, frees its row before the next step. That is the whole cancellation design; there
are no handles to forget and no tasks to reap.

A failed step fails no one in company: each of its sequences is computed again by itself, and the
one that fails alone gets the error. What only the engine itself can be blamed for ends it: those it
worked on and those who wait are told, and ``ended`` says so.

The thread goes from step to step by itself for as long as there is work, so that the lane never
waits for the event loop, nor the loop for the lane: while a step is computed, the loop sends the
tokens of the step before. Between steps, under a lock, what clients did meanwhile takes effect.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import asynccontextmanager, contextmanager

import structlog
import trio

from caldrix.engine.errors import EngineFailed, EngineUnavailable, PromptTooLong, UnknownToken
from caldrix.engine.generation import (
    FinishReason,
    GeneratedSequence,
    Generation,
    GenerationRequest,
)
from caldrix.engine.kept import Kept
from caldrix.engine.reading import Reading, ReadingRequest, ReadSequence
from caldrix.engine.rows import Rows
from caldrix.engine.scheduler import Scheduler, Work
from caldrix.engine.sequence import Sequence
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.stepper import Failed, Outcome, Picked, Stepper, Unclear
from caldrix.models.lane import Executor

_log = structlog.get_logger(__name__)

_WAKE_INTERVAL = 1 / 60
"""Seconds between handing out tokens, where steps are shorter than that.

A screen shows no more. Waking the event loop takes a processor from the step under way, and takes
it no longer for several tokens than for one.
"""


class Engine:
    """Takes requests while its `running_engine` block lasts and it was not stopped."""

    def __init__(
        self,
        executor: Executor,
        *,
        context: int,
        rows: int,
        prefix_rows: int,
        snapshots: int,
        queue_depth: int,
        speculator: Speculator | None,
        observe_token: Callable[[float], None] | None,
    ) -> None:
        self.context = context
        self.rows = rows
        """Requests that it computes at the same time."""
        self.ended = trio.Event()
        """Set once it takes no more requests."""
        self.failed = False
        """Whether it ended by a failure of its own, which the log has."""
        self._executor = executor
        self._positions = rows * context
        self._rows = Rows(executor, rows, prefix_rows, snapshots)
        self._scheduler = Scheduler(self._rows, rows, queue_depth, executor.prefill)
        self._stepper = Stepper(executor, speculator)
        self._observe_token = observe_token
        self._work_arrived = threading.Event()
        self._lock = self._scheduler.lock
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
    def kv_cache_usage(self) -> float:
        """The part of its rows' positions that running requests have filled, 0 to 1."""
        with self._lock:
            return self._scheduler.positions / self._positions

    @property
    def stopped(self) -> bool:
        """Whether it takes no more requests."""
        return self.ended.is_set()

    @asynccontextmanager
    async def submit(self, request: GenerationRequest) -> AsyncIterator[Generation]:
        """Queues a request; inside the block its tokens can be read.

        Raises PromptTooLong, UnknownToken, QueueFull and EngineUnavailable at once.
        """
        self.check_prompt(request.prompt)
        sequence = GeneratedSequence(request, self.context)
        with self._queued(sequence):
            yield Generation(sequence)

    @asynccontextmanager
    async def read(self, request: ReadingRequest) -> AsyncIterator[Reading]:
        """Queues a request; inside the block the logits after its prompt can be read.

        Raises PromptTooLong, UnknownToken, QueueFull and EngineUnavailable at once.
        """
        self.check_prompt(request.prompt)
        assert request.kept is None or 0 < request.kept.length < len(request.prompt)
        assert 0 <= min(request.token_ids) <= max(request.token_ids) < self._executor.vocab_size
        sequence = ReadSequence(request)
        with self._queued(sequence):
            yield Reading(sequence)

    @contextmanager
    def keep(self, length: int) -> Iterator[Kept]:
        """For requests to read whose prompts begin with the same ``length`` tokens.

        Inside the block those that are given what it yields compute these tokens only once, if
        there is room to keep what was computed. Each prompt has more than those.
        """
        kept = self._rows.new_kept(length)
        try:
            yield kept
        finally:
            kept.abandoned = True
            # Its memory goes at once, and not with the next request.
            self._work_arrived.set()

    def check_prompt(self, prompt: SequenceOf[int], *, after: int = 0) -> None:
        """Raises what a request with this prompt is refused with for its sake.

        That is PromptTooLong or UnknownToken, or EngineUnavailable as for any other. With ``after``
        it follows so many tokens that `check_tokens` has seen.
        """
        self.check_available()
        if after + len(prompt) >= self.context:
            raise PromptTooLong(after + len(prompt), self.context)
        self.check_tokens(prompt)

    def check_available(self) -> None:
        """Raises EngineUnavailable if it takes no more requests."""
        if self.stopped:
            raise EngineUnavailable

    def check_room(self) -> None:
        """Raises QueueFull if no request could be queued now."""
        with self._lock:
            self._scheduler.check_room()

    def check_tokens(self, tokens: SequenceOf[int]) -> None:
        """Raises UnknownToken for one that the model does not have."""
        if not tokens:
            return
        vocab_size = self._executor.vocab_size
        for token in (max(tokens), min(tokens)):
            if not 0 <= token < vocab_size:
                raise UnknownToken(token, vocab_size)

    @contextmanager
    def _queued(self, sequence: Sequence) -> Iterator[None]:
        """The sequence waits for its turn and has it, for as long as the block lasts at most."""
        with self._lock:
            self._scheduler.admit(sequence)
        self._work_arrived.set()
        try:
            yield
        finally:
            with self._lock:
                sequence.abandoned = True

    def stop(self) -> None:
        """Takes no more requests, and ends those it has with EngineUnavailable."""
        self.ended.set()
        self._work_arrived.set()
        with self._lock:
            everyone = self._scheduler.everyone()
            for sequence in everyone:
                if not sequence.ended:
                    sequence.fail(EngineUnavailable())
        for sequence in everyone:
            sequence.wake_reader()

    async def _run(self) -> None:
        try:
            # One thread for as long as it runs: the next one might not be to be had.
            await trio.to_thread.run_sync(self._step_until_ended, limiter=trio.CapacityLimiter(1))
        except Exception:  # noqa: BLE001  # it ends the engine, and must not end the others' work
            _log.exception("engine_failed")
            self.fail()

    def fail(self) -> None:
        """Ends by a failure that nothing can follow, of which those are told that it worked on.

        It is its own, or one that was met beside it, as where a lane is lost that more than the
        engine computes on. Only in the event loop.
        """
        self.failed = True
        with self._lock:
            for sequence in self._scheduler.everyone():
                if sequence.row is not None and not sequence.ended:
                    sequence.fail(EngineFailed())
        self.stop()
        # Those whose answers were complete are in no row any more, and perhaps not told yet.
        self._wake_readers()

    def _step_until_ended(self) -> None:
        """Runs in the worker thread, which sleeps while there is nothing to do."""
        while not self.stopped:
            self._work_arrived.wait()
            self._work_arrived.clear()
            self._step_while_needed()

    def _step_while_needed(self) -> None:
        """One step after the other, until there is nothing to do."""
        work = self._turn_over()
        while work:
            work = self._stepper.with_draft(work)
            outcomes = self._stepper.compute(work)
            with self._lock:
                for item, outcome in zip(work, outcomes, strict=True):
                    self._settle(item, outcome)
            self._to_wake.extend(item.sequence for item in work)
            following = self._turn_over()
            self._hand_out(soon=not _goes_on(work, following))
            work = following

    def _turn_over(self) -> SequenceOf[Work]:
        with self._lock:
            self._scheduler.turn_over()
        return self._scheduler.plan()

    def _settle(self, item: Work, outcome: Outcome) -> None:
        """Records a sequence's part in a step; of one that ended, only what the step spoiled."""
        sequence = item.sequence
        match outcome:
            case Picked(tokens) if not sequence.ended:
                before, generated = sequence.timeline.last_token, sequence.generated
                accepted = sequence.advance(item.slice, tokens, len(item.draft))
                self._stepper.learn(item, accepted)
                self._observe(sequence, before, sequence.generated - generated)
            case Unclear():
                sequence.begin_anew()
            case Failed():
                sequence.begin_anew()
                sequence.fail(EngineFailed())

    def _observe(self, sequence: Sequence, before: float | None, tokens: int) -> None:
        """Passes on how long each of a step's tokens took, for all but a sequence's first.

        ``before`` is when the last one before them came, in the timeline's seconds.
        """
        now = sequence.timeline.last_token
        if self._observe_token is None or before is None or now is None:
            return
        for _ in range(tokens):
            self._observe_token((now - before) / tokens)

    def _hand_out(self, *, soon: bool) -> None:
        """Has the event loop wake the readers: now if it must be ``soon``, else within a moment."""
        now = time.monotonic()
        if soon or now - self._handed_out >= _WAKE_INTERVAL:
            self._handed_out = now
            self._loop.run_sync_soon(self._wake_readers, idempotent=True)

    def _wake_readers(self) -> None:
        while self._to_wake:
            self._to_wake.popleft().wake_reader()


def _goes_on(work: SequenceOf[Work], following: SequenceOf[Work]) -> bool:
    """Whether the next step is like this one: the same sequences, each with its next token."""
    return [item.sequence for item in work] == [item.sequence for item in following] and all(
        item.sequence.decoding for item in following
    )


@asynccontextmanager
async def running_engine(
    executor: Executor,
    *,
    context: int,
    rows: int = 1,
    prefix_rows: int = 0,
    snapshots: int = 0,
    queue_depth: int = 64,
    speculator: Speculator | None = None,
    observe_token: Callable[[float], None] | None = None,
) -> AsyncIterator[Engine]:
    """An engine over a compiled model for as long as the block lasts.

    The executor has ``rows`` for requests and after them ``prefix_rows`` for shared prefixes; what
    is kept beside them (`Engine.keep`) takes the memory of ``snapshots`` rows at most. A
    ``speculator`` guesses ahead, for one row only. ``observe_token`` is told, in the engine's
    thread, the seconds that each token after a request's first took.

    Leaving the block stops the engine: requests still inside get EngineUnavailable. As from any
    nursery, an error of the block comes out in an exception group.
    """
    assert speculator is None or rows == 1
    engine = Engine(
        executor,
        context=context,
        rows=rows,
        prefix_rows=prefix_rows,
        snapshots=snapshots,
        queue_depth=queue_depth,
        speculator=speculator,
        observe_token=observe_token,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(engine._run)
        try:
            yield engine
        finally:
            engine.stop()
            nursery.cancel_scope.cancel()


__all__ = [
    "Engine",
    "FinishReason",
    "Generation",
    "GenerationRequest",
    "Kept",
    "Reading",
    "ReadingRequest",
    "running_engine",
]
