"""The load of `just soak`, a short one, on the compiled kernels and in this process.

`tests.soak` says what is asked; here it can also be seen that no task is left.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import frozen
from structlog.testing import capture_logs

from caldrix.models.lane import Executor, PrefillSizes, Slice, Snapshot
from caldrix.models.loading import load_model
from caldrix.weights.tensor import Float32
from caldrix_cpu.lane import CpuLane
from tests.soak.load import Capacity, Tally, load
from tests.soak.memory import MemoryCurve, resident
from tests.soak.model import CONTEXT, write_model
from tests.soak.questions import Exam, hold_exam
from tests.soak.settling import settle
from tests.support import miniature
from tests.support.serving import Running, serving
from tests.support.wire import tasks_living

CAPACITY = Capacity(rows=4, queue_depth=8)
WARM_UP, REQUESTS = 100, 300
QUESTIONS = 25
MEMORY_GROWTH = 32 * 2**20
"""More than allocators and a garbage collector's moods take."""


@frozen
class Paced:
    """An executor that takes its time: so small a model would be done before others ask."""

    real: Executor
    seconds: float

    @property
    def vocab_size(self) -> int:
        return self.real.vocab_size

    @property
    def prefill(self) -> PrefillSizes:
        return self.real.prefill

    @property
    def row_bytes(self) -> int:
        return self.real.row_bytes

    @property
    def reproducible(self) -> bool:
        return self.real.reproducible

    @property
    def rewinds(self) -> bool:
        return self.real.rewinds

    def step(self, slices: Sequence[Slice]) -> Float32:
        time.sleep(self.seconds)
        return self.real.step(slices)

    def resumable(self, row: int, length: int) -> int:
        return self.real.resumable(row, length)

    def copy_row(self, source: int, target: int, length: int) -> None:
        self.real.copy_row(source, target, length)

    def snapshot(self, row: int, length: int) -> Snapshot:
        return self.real.snapshot(row, length)

    def snapshot_bytes(self, length: int) -> int:
        return self.real.snapshot_bytes(length)

    def restore(self, snapshot: Snapshot, row: int) -> None:
        self.real.restore(snapshot, row)


@asynccontextmanager
async def serving_random(
    model: Path, *, rows: int, prefix_rows: int, queue_depth: int, pace: float = 0.0
) -> AsyncIterator[Running]:
    """A random model on the cpu lane, served; a step takes ``pace`` seconds more than it has to."""
    with load_model(
        model, lane=CpuLane(), context=CONTEXT, rows=rows, prefix_rows=prefix_rows, threads=1
    ) as loaded:
        async with serving(
            Paced(loaded.executor, pace),
            template=miniature.CHATML,
            context=CONTEXT,
            tokenizer=loaded.tokenizer,
            rows=rows,
            prefix_rows=prefix_rows,
            queue_depth=queue_depth,
        ) as running:
            yield running


async def put_under_load(server: Running, exam: Exam, requests: int, seed: int) -> Tally:
    tally = Tally()
    memory = MemoryCurve(lambda: resident(os.getpid()), requests)
    await load(
        server.url,
        exam,
        tally,
        capacity=CAPACITY,
        requests=requests,
        clients=CAPACITY.clients,
        seed=seed,
        memory=memory,
    )
    await settle(server.url, tally)
    return tally


async def wait_tasks_gone(before: int) -> None:
    with trio.fail_after(30):
        while tasks_living() > before:  # noqa: ASYNC110  # nothing tells
            await trio.sleep(0.05)


def test_every_answer_is_right_in_company_and_nothing_is_left(tmp_path: Path) -> None:
    model = write_model(tmp_path / "random")

    async def test() -> None:
        async with serving_random(model, rows=1, prefix_rows=0, queue_depth=0) as alone:
            exam = await hold_exam(alone.url, 1, QUESTIONS)
        async with serving_random(
            model,
            rows=CAPACITY.rows,
            prefix_rows=1,
            queue_depth=CAPACITY.queue_depth,
            pace=0.005,
        ) as server:
            tasks = tasks_living()
            warm = await put_under_load(server, exam, WARM_UP, seed=1)
            gc.collect()
            memory = resident(os.getpid())
            tally = await put_under_load(server, exam, REQUESTS, seed=2)
            gc.collect()
            assert resident(os.getpid()) - memory < MEMORY_GROWTH
            await wait_tasks_gone(tasks)
            engine = server.service.engine
            assert (engine.running, engine.waiting, engine.kv_cache_usage) == (0, 0, 0)
        assert [*warm.violations, *tally.violations][:5] == []
        assert tally.done == REQUESTS
        # It was a load, and all that may come of a request came of some.
        assert tally.peaks["num_requests_running"] == CAPACITY.rows
        assert tally.outcomes["refused as the queue was full, and asked again"] > REQUESTS
        assert len(tally.outcomes) >= 10, tally.outcomes

    async def in_time() -> None:
        with trio.fail_after(120):
            await test()

    with capture_logs() as logs:
        trio.run(in_time)
    assert [entry for entry in logs if entry["log_level"] not in {"info", "debug"}] == []
