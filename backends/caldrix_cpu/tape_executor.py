"""Runs a compiled Program: a step is one call of machine code on each thread of a team."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from attrs import frozen

from caldrix.models.lane import LaneLost, LaneOptions, PrefillSizes, Slice, Snapshot
from caldrix.models.program import Program, Select, inputs
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.assemble import Tape
from caldrix_cpu.backoff import ThreadChoice
from caldrix_cpu.embeddings import Embeddings
from caldrix_cpu.numpy_kernels import compile_operation
from caldrix_cpu.numpy_memory import RowMemory
from caldrix_cpu.numpy_step import Step
from caldrix_cpu.plan import ByNumpy, Plan, Projection
from caldrix_cpu.row_arrays import rows_in_arrays
from caldrix_cpu.runs import Run, runs_of
from caldrix_cpu.slice_checks import SliceLimits
from caldrix_cpu.step_memory import SMALL_TOKENS, StepMemory
from caldrix_cpu.team import Team
from caldrix_cpu.tiles.layouts import TILE_ROWS

_MOST_CHOSEN = 64
"""Up to so many tokens, the number of threads follows how long steps take."""
_SPILL_RUN = 64 << 20
"""Bytes of spilled weights that are read before they are let go of."""


@frozen
class Part:
    """Items of a plan that run without Python between them, and what Python does afterwards."""

    first: int
    last: int
    then: Callable[[Run], None] | None = None
    selected: bool = False
    """Whether rows are those of the wanted tokens."""


class TapeExecutor:
    """See `caldrix.models.lane.Executor`."""

    prefill = PrefillSizes()

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Tensor],
        options: LaneOptions,
        plan: Plan,
        tape_: Tape,
        team: Team,
        memory: StepMemory,
        embeddings: Embeddings,
        run: Callable[..., int],
        spill: Arena | None,
        row_bytes: int,
    ) -> None:
        self.vocab_size = program.vocab_size
        self.row_bytes = row_bytes
        self.rewinds = not program.states
        self.bytes_read_per_token = tape_.bytes_read
        self._options = options
        self._limits = SliceLimits(program.vocab_size, options.context, plan.begin.out.width)
        self._plan = plan
        self._tape = tape_
        self._team = team
        self._memory = memory
        self._embeddings = embeddings
        # Single numbers are set much faster through a memoryview than through numpy.
        self._header = memory.header.data
        self._header_address = address(memory.header)
        self._run_kernel = run
        self._left = False
        self._spill = spill
        by_numpy = [each.operation for each in plan.items if isinstance(each, ByNumpy)]
        # Sums by numpy differ with their company.
        self.reproducible = not by_numpy
        self._numpy_memory = RowMemory.allocate(program, by_numpy, options.rows, options.context)
        states = [*tape_.states, *self._numpy_memory.states.values()]
        self._rows = rows_in_arrays(tape_.caches, states, options.rows, reusable=self.reproducible)
        self.threads = team.size
        self._threads = ThreadChoice(team.size)
        self._parts = self._make_parts(program, weights)
        self._logits_record = next(
            (
                tape_.records[index]
                for index, item in enumerate(plan.items)
                if isinstance(item, Projection) and item.to_logits
            ),
            None,
        )
        self._always_large = bool(by_numpy)

    @property
    def by_numpy(self) -> tuple[str, ...]:
        """The operations that the tape lacks, by name."""
        return tuple(
            sorted(
                {
                    type(item.operation).__name__
                    for item in self._plan.items
                    if isinstance(item, ByNumpy)
                }
            )
        )

    def step(self, slices: Sequence[Slice]) -> Float32:
        """Computes the slices; the logits are a view that the next step overwrites."""
        self._check_present()
        self._limits.check(slices)
        for each in slices:
            self._rows.check(each.row, each.start)
        wanted = sum(each.wanted for each in slices)
        for each in slices:
            self._rows.begin(each)
        logits = self._memory.logits(wanted)
        done = 0
        for run in runs_of(slices):
            self._compute(run, done)
            done += run.wanted
        for each in slices:
            self._rows.end(each)
        return logits[:wanted]

    def resumable(self, row: int, length: int) -> int:
        """Where to go on from; 0 throughout where numpy's sums have a part. Raises LaneError."""
        self._check_present()
        return self._rows.resumable(row, length)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies keys, values and states, at the speed of memory."""
        self._check_present()
        self._rows.copy(source, target, length)

    def snapshot(self, row: int, length: int) -> Snapshot:
        """Copies them to memory of their own."""
        self._check_present()
        return self._rows.snapshot(row, length)

    def snapshot_bytes(self, length: int) -> int:
        """What that takes."""
        self._check_present()
        return self._rows.snapshot_bytes(length)

    def restore(self, snapshot: Snapshot, row: int) -> None:
        """Copies them back, to any row."""
        self._check_present()
        self._rows.restore(snapshot, row)

    def leave(self) -> None:
        """Ends its use: its memory is about to go."""
        self._left = True
        self._tape.caches.clear()
        self._tape.states.clear()
        self._rows = rows_in_arrays((), (), self._options.rows)

    def _check_present(self) -> None:
        if self._left:
            raise LaneLost("the executor's block was left; its memory is gone")

    def _compute(self, run: Run, logits_row: int) -> None:
        memory, header = self._memory, self._header
        last_position = memory.lay_out(run, logits_row)
        for rope in self._tape.ropes:
            rope.fill(last_position + 1)
        self._embeddings.write(run.slices, run.tokens)
        small = run.tokens <= SMALL_TOKENS and not self._always_large
        small_wanted = run.wanted <= SMALL_TOKENS and not self._always_large
        # Steps of about as many tokens take about the same time. Long ones are worth all threads
        # even beside a neighbour: threads take over pieces of one that is held up.
        kind = run.tokens.bit_length()
        chosen = run.tokens <= _MOST_CHOSEN
        threads = self._threads.choose(kind) if chosen else self.threads
        began = time.perf_counter()
        header[tape.THREADS] = threads
        header[tape.SMALL_WANTED] = small_wanted
        with self._logits_of(run.token_ids):
            self._run_parts(run, threads, small=small, small_wanted=small_wanted)
        if chosen:
            self._threads.record(kind, threads, time.perf_counter() - began)

    @contextmanager
    def _logits_of(self, token_ids: range | None) -> Iterator[None]:
        """The tape computes the logits of these alone, with the very same bits, in whole tiles."""
        if token_ids is None or self._logits_record is None:
            yield
            return
        record, header = self._logits_record, self._header
        whole = record.copy(), header[tape.LOGITS]
        tile_bytes = record[tape.TILE_BYTES]
        # Tiles of several sizes can't be counted from any but the first.
        first = token_ids[0] // TILE_ROWS if tile_bytes else 0
        record[tape.TILES] = token_ids[-1] // TILE_ROWS + 1 - first
        record[tape.WEIGHTS] += first * tile_bytes
        header[tape.LOGITS] += 4 * TILE_ROWS * first
        try:
            yield
        finally:
            record[:], header[tape.LOGITS] = whole

    def _run_parts(self, run: Run, threads: int, *, small: bool, small_wanted: bool) -> None:
        header = self._header
        for part in self._parts:
            if part.selected and not run.wanted:
                break
            if part.last > part.first:
                header[tape.FIRST_OPERATION], header[tape.LAST_OPERATION] = part.first, part.last
                header[tape.TOKENS] = run.wanted if part.selected else run.tokens
                header[tape.SMALL] = small_wanted if part.selected else small
                self._team.begin(threads)
                self._run_kernel(self._header_address, 0)
            if part.then is not None:
                part.then(run)

    def _make_parts(self, program: Program, weights: Mapping[str, Tensor]) -> list[Part]:
        """Cuts the tape where numpy has to run, and where spilled weights are let go of."""
        parts: list[Part] = []
        first, spilled, selected = 0, 0, False

        def cut(end: int, then: Callable[[Run], None]) -> None:
            nonlocal first, spilled, selected
            parts.append(Part(first, end, then, selected))
            items = self._plan.items[first:end]
            selected = selected or any(isinstance(item, Select) for item in items)
            spilled = 0

        for index, item in enumerate(self._plan.items):
            if isinstance(item, ByNumpy):
                after = any(isinstance(each, Select) for each in self._plan.items[first:index])
                cut(index, self._by_numpy(program, weights, item, selected or after))
                selected = selected or isinstance(item.operation, Select)
                first = index + 1
                continue
            matrix = self._tape.matrices.get(index)
            if matrix is not None and matrix.spilled:
                spilled += matrix.size
                if spilled >= _SPILL_RUN:
                    cut(index + 1, self._drop)
                    first = index + 1
        last = len(self._plan.items)
        parts.append(Part(first, last, self._drop if spilled else None, selected))
        return parts

    def _drop(self, run: Run) -> None:
        assert self._spill is not None
        self._spill.drop()

    def _by_numpy(
        self, program: Program, weights: Mapping[str, Tensor], item: ByNumpy, selected: bool
    ) -> Callable[[Run], None]:
        operation = item.operation
        kernel = compile_operation(program, weights, self._options, self._numpy_memory, operation)
        last = len(program.operations) - 1

        def then(run: Run) -> None:
            count = run.wanted if selected else run.tokens
            registers: list[Float32 | None] = [None] * len(program.operations)
            for value in inputs(operation):
                registers[value.index] = self._memory.view(self._plan, value, count).copy()
            with np.errstate(over="ignore"):
                kernel(registers, Step.of(run.slices))
            result = registers[operation.out.index]
            assert result is not None
            if operation.out.index == last:
                self._memory.write_logits(result)
            else:
                self._memory.write(self._plan, operation.out, result)

        return then
