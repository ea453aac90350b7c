"""What several prompts begin with: computed once, kept for them alone, gone with their block."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio

from caldrix.engine.engine import Engine, Kept, ReadingRequest, running_engine
from caldrix.engine.errors import EngineFailed
from caldrix.models.lane import LaneError, LaneLost, Snapshot
from tests.support.readable import ReadableExecutor, logits_after
from tests.support.serving import trio_test, wait_idle

VOCAB = 300
CONTEXT = 1024
IDS = (7, 3, 250)
STATE = tuple(n % 290 for n in range(600))
"""More than a step computes of a prompt."""
OTHER = tuple(n % 289 for n in range(600))
QUESTIONS = [(291, 5), (292, 6, 7), (291, 8)]
POISON = 299


class Forgetful(ReadableExecutor):
    """Goes on from a row's end alone, as models with states do."""

    def __init__(self, room: int = CONTEXT, *, poison: int | None = None) -> None:
        super().__init__(VOCAB, poison=poison, memory=0)
        self.row_bytes = room


@asynccontextmanager
async def engine_over(executor: ReadableExecutor, snapshots: int = 1) -> AsyncIterator[Engine]:
    async with running_engine(executor, context=CONTEXT, snapshots=snapshots) as engine:
        yield engine


async def read(engine: Engine, prompt: tuple[int, ...], kept: Kept | None = None) -> int:
    """Checks the logits that are read; gives how many tokens were not computed."""
    async with engine.read(ReadingRequest(prompt, IDS, kept=kept)) as reading:
        logits = await reading.logits()
    np.testing.assert_array_equal(logits, logits_after(prompt, VOCAB)[list(IDS)])
    return reading.timeline.cached_tokens


async def dropped(executor: ReadableExecutor) -> None:
    with trio.fail_after(5):
        while executor.snapshots:  # noqa: ASYNC110  # there is no event
            await trio.sleep(0.001)


@trio_test
async def test_a_state_is_computed_once_for_all_its_questions() -> None:
    executor = Forgetful()
    async with engine_over(executor) as engine:
        with engine.keep(len(STATE)) as kept:
            cached = [await read(engine, (*STATE, *question), kept) for question in QUESTIONS]
            assert kept.taken
            assert len(executor.snapshots) == 1
        assert cached == [0, 600, 600]
        assert executor.tokens_computed == 600 + 2 + 3 + 2
        # Nobody has to ask anything more for its memory to go.
        await dropped(executor)
        # And nobody else went on from it: that would be seen.
        assert await read(engine, (*STATE, 9)) == 0


@trio_test
async def test_others_come_between_and_change_nothing() -> None:
    executor = Forgetful()
    async with engine_over(executor) as engine:
        with engine.keep(len(STATE)) as kept:
            for question in QUESTIONS:
                await read(engine, (*STATE, *question), kept)
                assert await read(engine, (*STATE[:500], 9)) == 0
        assert executor.restored == 2


@trio_test
async def test_two_clients_keep_what_there_is_room_for() -> None:
    executor = Forgetful(room=900)
    async with engine_over(executor) as engine:
        with engine.keep(600) as kept, engine.keep(400) as more, engine.keep(300) as other:
            for question in QUESTIONS:
                for each in (kept, more, other):
                    await read(engine, (*STATE[: each.length], *question), each)
            assert (kept.taken, more.taken, other.taken) == (True, False, True)
        await dropped(executor)
        # What finds no room for its first prompt may find some for the next.
        with engine.keep(600) as late:
            with engine.keep(600) as early:
                await read(engine, (*OTHER, 1), early)
                assert await read(engine, (*STATE, 1), late) == 0
                assert not late.taken
            cached = [await read(engine, (*STATE, *question), late) for question in QUESTIONS]
            assert cached == [0, 600, 600]
            assert late.taken
        await dropped(executor)
        # There is room again.
        with engine.keep(900) as kept:
            await read(engine, (*STATE, *STATE[:300], 1), kept)
            assert kept.taken


@pytest.mark.parametrize("snapshots", [0, 1])
def test_without_room_all_is_computed_each_time(snapshots: int) -> None:
    @trio_test
    async def run() -> None:
        executor = Forgetful(room=599)
        async with engine_over(executor, snapshots) as engine:
            with engine.keep(len(STATE)) as kept:
                for question in QUESTIONS:
                    assert await read(engine, (*STATE, *question), kept) == 0
            assert not kept.taken

    run()


@trio_test
async def test_nothing_is_kept_of_a_lane_that_cannot_promise_the_same_bits() -> None:
    executor = ReadableExecutor(VOCAB, reproducible=False)
    async with engine_over(executor) as engine:
        with engine.keep(len(STATE)) as kept:
            for question in QUESTIONS:
                assert await read(engine, (*STATE, *question), kept) == 0
        assert not kept.taken
        assert not executor.snapshots


@trio_test
async def test_what_a_row_holds_already_is_kept_from_there() -> None:
    executor = ReadableExecutor(VOCAB)
    executor.row_bytes = CONTEXT
    async with engine_over(executor) as engine:
        first = (*STATE, *QUESTIONS[0])
        await read(engine, first)
        with engine.keep(len(STATE)) as kept:
            # All but the last token are in the row; of those the state alone is gone on from.
            assert await read(engine, first, kept) == 600
            assert kept.taken


@trio_test
async def test_a_prompt_that_fails_leaves_what_is_kept_to_the_next() -> None:
    executor = Forgetful(poison=POISON)
    async with engine_over(executor) as engine:
        with engine.keep(len(STATE)) as kept:
            with pytest.raises(EngineFailed):
                await read(engine, (*STATE, POISON), kept)
            assert kept.taken
            assert await read(engine, (*STATE, *QUESTIONS[0]), kept) == 600


class CannotKeep(Forgetful):
    def snapshot(self, row: int, length: int) -> Snapshot:
        raise LaneError("there is no memory for it")


class CannotRestore(Forgetful):
    def restore(self, snapshot: Snapshot, row: int) -> None:
        raise LaneError("it cannot be read")


@pytest.mark.parametrize(("lane", "taken"), [(CannotKeep, False), (CannotRestore, True)])
def test_what_cannot_be_kept_is_computed_again(lane: type[Forgetful], taken: bool) -> None:
    @trio_test
    async def run() -> None:
        async with engine_over(lane()) as engine:
            with engine.keep(len(STATE)) as kept:
                for question in QUESTIONS:
                    assert await read(engine, (*STATE, *question), kept) == 0
            assert kept.taken is taken

    run()


@trio_test
async def test_a_lane_lost_in_the_middle_ends_the_engine() -> None:
    class Lost(Forgetful):
        def snapshot(self, row: int, length: int) -> Snapshot:
            raise LaneLost("the device is gone")

    async with engine_over(Lost()) as engine:
        with engine.keep(len(STATE)) as kept, pytest.raises(EngineFailed):
            await read(engine, (*STATE, 1), kept)
        assert engine.failed


@trio_test
async def test_leaving_in_the_middle_drops_what_is_kept() -> None:
    executor = Forgetful()
    async with engine_over(executor) as engine:
        with engine.keep(len(STATE)) as kept:
            await read(engine, (*STATE, *QUESTIONS[0]), kept)
            executor.gate.clear()
            with trio.move_on_after(0.05):
                await read(engine, (*STATE, *QUESTIONS[1]), kept)
        executor.gate.set()
        await wait_idle(engine)
        await dropped(executor)


@trio_test
async def test_what_a_row_holds_of_a_prompt_is_gone_on_from_if_it_is_more() -> None:
    executor = ReadableExecutor(VOCAB)
    executor.row_bytes = CONTEXT
    async with engine_over(executor) as engine:
        with engine.keep(500) as kept:
            await read(engine, (*STATE, 1), kept)
            # All but a token of it is in the row still; the snapshot has less.
            assert await read(engine, (*STATE, 2), kept) == 600
            assert kept.taken
        assert executor.restored == 0


@trio_test
async def test_several_rows_and_prefixes_beside_what_is_kept() -> None:
    executor = ReadableExecutor(VOCAB)
    executor.row_bytes = CONTEXT
    async with running_engine(
        executor, context=CONTEXT, rows=2, prefix_rows=1, snapshots=1
    ) as engine:
        # Two conversations that part put what they share into the prefix row.
        for prompt in ((*STATE[:300], 1), (*STATE[:300], 2)):
            await read(engine, prompt)
        copies = len(executor.copies)
        with engine.keep(400) as kept:
            for question in QUESTIONS:
                await read(engine, (*STATE[:400], *question), kept)
        # What is kept for one client takes nobody's place there.
        assert not [target for _, target, _ in executor.copies[copies:] if target == 2]
        assert await read(engine, (*STATE[:300], 3)) == 300


@trio_test
async def test_what_is_abandoned_before_it_is_computed_is_never_kept() -> None:
    executor = Forgetful()
    async with engine_over(executor) as engine:
        executor.gate.clear()
        with trio.move_on_after(0.05), engine.keep(len(STATE)) as kept:
            await read(engine, (*STATE, 1), kept)
        executor.gate.set()
        await wait_idle(engine)
        await read(engine, (9, 9))
        assert executor.snapshots_taken == 0
