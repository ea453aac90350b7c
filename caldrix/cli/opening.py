"""From the flags of `serve` and `run` about the model itself to that model, loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen
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
from caldrix.models.lane import Lane, find_lane
from caldrix.models.loading import TextModel, load_model
from caldrix.weights.progress import Progress


@frozen(eq=False)
class Opened:
    """A model that runs, and what guesses ahead for it."""

    model: TextModel
    speculation: Speculation | None


@frozen
class Opening:
    """What is decided of a model before it is loaded."""

    lane: Lane
    context: int | None
    threads: int | None
    dtype: str
    kv_dtype: str
    weight_budget: int | None
    max_batch: int
    picks: bool
    guessing: SpeculationSettings

    @contextmanager
    def open(
        self,
        path: Path,
        *,
        prefix_rows: int = 0,
        keeps: bool = False,
        progress: Progress,
    ) -> Iterator[Opened]:
        """The model of a checkpoint, for as long as the block lasts. Raises a Refusal."""
        with (
            load_model(
                path,
                lane=self.lane,
                context=self.context,
                rows=self.max_batch,
                prefix_rows=prefix_rows,
                keeps=keeps,
                threads=self.threads,
                dtype=self.dtype,
                kv_dtype=self.kv_dtype,
                weight_budget=self.weight_budget,
                picks=self.picks,
                progress=progress,
            ) as model,
            open_speculation(
                self.guessing,
                model,
                path=path,
                lane=self.lane,
                threads=self.threads,
                progress=progress,
            ) as speculation,
        ):
            yield Opened(model, speculation)


@Parameter(name="*")
@frozen
class ModelFlags:
    """How a model is computed."""

    backend: str = "auto"
    """Lane to compute on: auto, or one that `caldrix doctor` lists."""
    dtype: DtypeFlag = "auto"
    """How weights are kept in memory; auto is the lane's own choice for the model's files."""
    kv_dtype: KvDtypeFlag = "auto"
    """How the keys and values of the context are kept; auto is the lane's own choice."""
    weight_budget: str | None = None
    """At most so much of the weights stays in memory, such as 500M, 2G or 1.5GiB; no limit if not
    given."""
    context: Whole | None = None
    """Tokens a prompt and its answer may have together; the model's own limit if not given."""
    threads: str = "auto"
    """Threads to compute with: auto, or a number."""
    sampler: SamplerFlag | None = None
    """Where sampled tokens are picked: device, which an AMD GPU does with --max-batch above 1, or
    host, the CPU; the lane's own choice if not given."""

    def opening(self, speculation: SpeculationFlags | None, *, max_batch: int = 1) -> Opening:
        """What the flags ask for, as far as this machine has it. Raises Refusal.

        What ``--speculate auto`` has to give up is logged.
        """
        guessing = (speculation or SpeculationFlags()).settings()
        check_positive("--context", self.context, least=2)
        threads = read_threads(self.threads)
        budget = self.weight_budget
        size = None if budget is None else read_size("--weight-budget", budget)
        lane = find_lane(self.backend)
        return Opening(
            lane=lane,
            context=self.context,
            threads=threads,
            dtype=self.dtype,
            kv_dtype=self.kv_dtype,
            weight_budget=size,
            max_batch=max_batch,
            picks=picks_on_device(self.sampler, lane, max_batch=max_batch),
            guessing=settle(guessing, lane, max_batch=max_batch, weight_budget=size),
        )
