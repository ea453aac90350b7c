"""A load on `caldrix serve` of four times what it takes, with every answer checked.

Clients ask, stream, leave at any moment, send nonsense and are refused. What is checked: each
finished answer is the one given to the same question asked alone; each refusal is the document's;
rows, connections and memory are given back; and the log has nothing to complain of.

`just soak` runs it; with ``--help`` it says what may be chosen.
"""

from __future__ import annotations

import math
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import trio
from attrs import define, field
from rich.console import Console
from rich.table import Table

from caldrix.cli.options import check_positive
from caldrix.errors import Refusal
from tests.benchmarks.script import run_script
from tests.soak.load import Capacity, Tally, load
from tests.soak.memory import LEAST_REQUESTS, MemoryCurve, resident
from tests.soak.model import write_model
from tests.soak.process import ServerProcess, noise, serving
from tests.soak.questions import Exam, hold_exam
from tests.soak.settling import settle

if TYPE_CHECKING:
    from rich.status import Status

_QUESTIONS = 80
_MOST_SHOWN = 5
_LINGER = 30.0
"""Seconds within which connections that clients have left are closed."""
_INTERRUPTED = 130


@define
class _Load:
    """A load on its way, which Ctrl-C ends."""

    server: ServerProcess
    exam: Exam
    requests: int
    clients: int
    seed: int
    capacity: Capacity
    memory: MemoryCurve
    tally: Tally = field(factory=Tally)
    interrupted: bool = False

    async def run(self, status: Status) -> None:
        """Sends all requests, and sees that nothing is left of them."""
        files = self.server.open_files
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._end_on_interrupt, nursery.cancel_scope)
            nursery.start_soon(self._show, status)
            await load(
                self.server.url,
                self.exam,
                self.tally,
                capacity=self.capacity,
                requests=self.requests,
                clients=self.clients,
                seed=self.seed,
                memory=self.memory,
            )
            nursery.cancel_scope.cancel()
        if not self.interrupted:
            await settle(self.server.url, self.tally)
            await self._wait_files_closed(files)

    async def _wait_files_closed(self, before: int) -> None:
        with trio.move_on_after(_LINGER):
            while self.server.open_files > before:  # noqa: ASYNC110  # nothing tells
                await trio.sleep(0.1)
        now = self.server.open_files
        self.tally.expect(now <= before, f"{now} files are open, and {before} were before")

    async def _end_on_interrupt(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGINT) as signals:
            async for _ in signals:
                self.interrupted = True
                scope.cancel()

    async def _show(self, status: Status) -> None:
        while True:
            status.update(f"{self.tally.done:,} of {self.requests:,} requests")
            await trio.sleep(0.2)


def soak(
    *,
    requests: int = 5000,
    seed: int = 1,
    model: str | None = None,
    max_batch: int = 4,
    prefix_rows: int = 1,
    queue_depth: int = 4,
    clients: int | None = None,
    speculate: str | None = None,
) -> int:
    """Ask more of a server than it can take, and check each of its answers.

    Parameters
    ----------
    requests
        Requests in all.
    seed
        What they are drawn from: the same seed, the same requests.
    model
        The model to serve, one that chats; a small random one if none is given.
    max_batch
        Requests that the server computes at the same time.
    prefix_rows
        Its rows for shared beginnings.
    queue_depth
        Requests that may wait beside those.
    clients
        Clients at once; four times what the server takes if not given.
    speculate
        How the server guesses ahead; it needs --max-batch 1.
    """
    for flag, value in {"--requests": requests, "--max-batch": max_batch}.items():
        check_positive(flag, value)
    check_positive("--clients", clients)
    if not Path("/proc/self/statm").exists():
        raise Refusal("a soak reads its server's memory in /proc, which this system lacks")
    capacity = Capacity(max_batch, queue_depth)
    flags = [
        f"--max-batch={max_batch}",
        f"--prefix-rows={prefix_rows}",
        f"--queue-depth={queue_depth}",
        *([] if speculate is None else [f"--speculate={speculate}"]),
    ]
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="caldrix-soak-") as folder,
        Console(stderr=True).status("asking each question alone") as status,
    ):
        served = write_model(Path(folder, "random")) if model is None else model
        with serving(served, ["--max-batch=1"], Path(folder, "alone.log")) as alone:
            exam = trio.run(hold_exam, alone.url, seed, _QUESTIONS)
        log = Path(folder, "soak.log")
        with serving(served, flags, log) as server:
            memory = MemoryCurve(lambda: resident(server.id), requests)
            under_way = _Load(
                server, exam, requests, clients or capacity.clients, seed, capacity, memory
            )
            trio.run(under_way.run, status)
        tally = under_way.tally
        tally.violations += [f"the log says {line}" for line in noise(log)]
    if not under_way.interrupted:
        tally.expect(
            memory.growth <= memory.bound,
            f"memory grows by {_mib(memory.growth)} over the second half, "
            f"and may by {_mib(memory.bound)}",
        )
    _print(under_way, time.monotonic() - began)
    if under_way.interrupted:
        return _INTERRUPTED
    return 1 if tally.violations else 0


def _print(under_way: _Load, seconds: float) -> None:
    tally, memory = under_way.tally, under_way.memory
    console = Console(markup=False, highlight=False, soft_wrap=True)
    table = Table("outcome", box=None, pad_edge=False, title_justify="left")
    table.add_column("requests", justify="right", no_wrap=True)
    table.title = f"{tally.done:,} requests of {under_way.clients} clients, seed {under_way.seed}"
    for outcome, count in sorted(tally.outcomes.items()):
        table.add_row(outcome, f"{count:,}")
    console.print(table)
    running, waiting = (tally.peaks[f"num_requests_{what}"] for what in ("running", "waiting"))
    first, last = memory.ends
    console.print(f"at once: {running} computed, {waiting} waiting, at the most seen")
    limit = (
        f"of {_mib(memory.bound)} allowed"
        if math.isfinite(memory.bound)
        else f"judged from {LEAST_REQUESTS:,} requests on"
    )
    console.print(
        f"memory: {_mib(first)} before, {_mib(last)} after; over the second half "
        f"{_mib(memory.growth)}, {limit}"
    )
    console.print(f"time: {seconds:.0f} s")
    for violation in tally.violations[:_MOST_SHOWN]:
        console.print(f"violation: {violation}")
    if under_way.interrupted:
        console.print("interrupted")
    console.print(f"violations: {len(tally.violations)}")


def _mib(count: float) -> str:
    return f"{count / 2**20:.1f} MiB"


if __name__ == "__main__":
    run_script(soak, "just soak")
