"""From the flags of `serve` and `run` about the model itself to that model, loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from attrs import evolve, frozen
from cyclopts import Parameter

from caldrix.cli.options import (
    DtypeFlag,
    KvDtypeFlag,
    Whole,
    check_positive,
    read_size,
    read_threads,
)
from caldrix.cli.sampler import SamplerFlag, picks_on_device
from caldrix.cli.speculation import SpeculationFlags
from caldrix.engine.speculation.opening import Speculation, open_speculation
from caldrix.engine.speculation.settings import SpeculationSettings, settle
from caldrix.models.batching import Batching
from caldrix.models.lane import Lane, OnDevice, find_lane
from caldrix.models.loading import TextModel, load_model
from caldrix.weights.progress import Progress


@frozen(eq=False)
class Opened:
    """A model that runs, and what guesses ahead for it."""

    model: TextModel
    speculation: Speculation | None
    max_batch: int
    """Requests that would be computed at the same time, also where there is one alone."""


@frozen
class Opening:
    """What is decided of a model before it is loaded."""

    lane: Lane
    context: int | None
    threads: int | None
    dtype: str
    kv_dtype: str
    weight_budget: int | None
    batching: Batching
    sampler: SamplerFlag | None
    guessing: SpeculationSettings

    def for_decisions(self, progress: Progress) -> Self:
        """The same for a model trained for decisions: those are answered one at a time."""
        if self.batching.asked is not None or self.lane.usual_rows == 1:
            return self
        progress.note(
            "one request at a time: decisions are answered only so; --max-batch "
            f"{self.lane.usual_rows} answers other requests together, and none of those"
        )
        return evolve(self, batching=evolve(self.batching, asked=1))

    @contextmanager
    def open(
        self,
        path: Path,
        *,
        alone: bool = False,
        prefix_rows: int = 0,
        keeps: bool = False,
        progress: Progress,
    ) -> Iterator[Opened]:
        """The model of a checkpoint, for as long as the block lasts. Raises a Refusal.

        ``alone`` there is memory for a single request, whatever the lane could compute; with
        ``keeps`` a single row has snapshots beside it.
        """
        max_batch = self.batching.settled(path, progress)
        guessing = settle(
            self.guessing, self.lane, max_batch=max_batch, weight_budget=self.weight_budget
        )
        with (
            load_model(
                path,
                lane=self.lane,
                context=self.context,
                rows=1 if alone else max_batch,
                prefix_rows=prefix_rows,
                keeps=keeps and max_batch == 1,
                threads=self.threads,
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                weight_budget=self.weight_budget,
                picks=picks_on_device(self.sampler, self.lane, max_batch=max_batch),
                progress=progress,
            ) as model,
            open_speculation(
                guessing,
                model,
                path=path,
                lane=self.lane,
                threads=self.threads,
                progress=progress,
            ) as speculation,
        ):
            yield Opened(model, speculation, max_batch)


@Parameter(name="*")
@frozen
class ModelFlags:
    """How a model is computed."""

    backend: str = "auto"
    """Lane to compute on: auto, or one that `caldrix doctor` lists; hip:1 is the second of
    several devices."""
    max_batch: Whole | None = None
    """Requests computed at the same time; 8 on the lanes hip and host if not given, elsewhere 1."""
    dtype: DtypeFlag = "auto"
    """How weights are kept in memory; auto is the lane's own choice for the model's files."""
    kv_dtype: KvDtypeFlag = "auto"
    """How the keys and values of the context are kept; auto is the lane's own choice."""
    weight_budget: str | None = None
    """At most so much of the weights stays in memory, such as 500M, 2G or 1.5GiB; no limit if not
    given."""
    context: Whole | None = None
    """Tokens a prompt and its answer may have together; if not given, the model's own limit, or
    what the memory has room for."""
    threads: str = "auto"
    """Threads to compute with: auto, or a number."""
    sampler: SamplerFlag | None = None
    """Where sampled tokens are picked: device, which an AMD GPU does with --max-batch above 1, or
    host, the CPU; the lane's own choice if not given."""

    def opening(self, speculation: SpeculationFlags | None) -> Opening:
        """What the flags ask for, as far as this machine has it. Raises Refusal.

        What ``--speculate auto`` has to give up is logged.
        """
        guessing = (speculation or SpeculationFlags()).settings()
        check_positive("--context", self.context, least=2)
        check_positive("--max-batch", self.max_batch)
        threads = read_threads(self.threads)
        budget = self.weight_budget
        size = None if budget is None else read_size("--weight-budget", budget)
        lane = find_lane(self.backend)
        batching = Batching(lane, self.max_batch, self.dtype)
        # Where the files decide, they may yet make it one.
        max_batch = batching.known() or 1
        picks_on_device(self.sampler, lane, max_batch=batching.known() or lane.usual_rows)
        guessing = settle(guessing, lane, max_batch=max_batch, weight_budget=size)
        # Before the model: what is missing should not be told after fetching one.
        if isinstance(lane, OnDevice):
            lane.device()
        return Opening(
            lane=lane,
            context=self.context,
            threads=threads,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            weight_budget=size,
            batching=batching,
            sampler=self.sampler,
            guessing=guessing,
        )
