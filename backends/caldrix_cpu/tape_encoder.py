"""Runs an EncoderProgram by compiled kernels, a stage after the other.

A stage is a tape over values with equally many rows; between stages numpy puts rows side by side,
as a pixel shuffle says. The threads are the encoder's own, so that images can be read while
another thread steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import numpy as np
from attrs import frozen

from caldrix.models.encoder_program import (
    AttendAll,
    EncoderOperation,
    EncoderProgram,
    PixelShuffle,
)
from caldrix.models.lane import LaneLost, LaneOptions, LaneUnavailable
from caldrix.models.program import Value
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.assemble import Assembler, Tape, all_head_bytes
from caldrix_cpu.compiled import threads_of
from caldrix_cpu.encoder_memory import EncoderMemory
from caldrix_cpu.formats import Format, choose_format
from caldrix_cpu.library import load_kernels
from caldrix_cpu.memory import Needs, available_memory, require_memory
from caldrix_cpu.numpy_encoder import check_rows, shuffled
from caldrix_cpu.plan import Plan, make_stage_plan
from caldrix_cpu.team import Header, Team, running_team
from caldrix_cpu.variants import Variant
from caldrix_cpu.weights import WeightStore, most_bytes


@frozen(eq=False)
class _StagePlan:
    plan: Plan
    rows: int
    out: Value


@frozen(eq=False)
class _Stage:
    plan: _StagePlan
    tape: Tape
    memory: EncoderMemory


class TapeEncoder:
    """See `caldrix.models.lane.Encoder`."""

    def __init__(
        self,
        program: EncoderProgram,
        stages: Sequence[_Stage],
        team: Team,
        header: Header,
        run: Callable[..., int],
        weight_bytes: int,
    ) -> None:
        self.weight_bytes = weight_bytes
        self._program = program
        self._stages = stages
        self._team = team
        self._header = header
        self._run = run
        self._left = False

    def encode(self, rows: Float32) -> Float32:
        """The features; a fresh array."""
        if self._left:
            raise LaneLost("the encoder's block was left; its memory is gone")
        check_rows(self._program, rows)
        for stage in self._stages:
            begin = stage.plan.plan.begin
            if isinstance(begin, PixelShuffle):
                rows = shuffled(rows, begin)
            for field, value in stage.memory.begin(rows).items():
                self._header[field] = value
            self._team.begin(self._team.size)
            self._run(address(self._header), 0)
            rows = stage.memory.view(stage.plan.out)
        return rows.copy()

    def leave(self) -> None:
        """Ends its use: its memory is about to go."""
        self._left = True
        self._stages = ()


@contextmanager
def tape_encoder(
    program: EncoderProgram,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    variant: Variant,
) -> Iterator[TapeEncoder]:
    """An encoder of compiled kernels while the block lasts; leaving it ends its threads.

    Raises LaneUnavailable for what this machine cannot give: memory, or a compiler's output.
    """
    matrices = {name: tensor.as_matrix() for name, tensor in weights.items()}
    formats: dict[str, Format] = {}

    def format_of(name: str) -> Format:
        if name not in formats:
            # Hundreds of rows share a weight that was read: what counts is to compute little.
            formats[name] = choose_format(
                matrices[name], options.dtype, dot=variant.dot, compressed=False
            )
        return formats[name]

    plans = list(_stage_plans(program, format_of))
    weight_bytes = sum(most_bytes(each.plan, matrices) for each in plans)
    _require(weight_bytes, options)
    attend = _attention_unit(formats.values(), variant)
    units = ["run", "work", attend, *sorted({each.unit for each in formats.values()})]
    kernels = load_kernels(variant, units, options.progress)
    header = np.zeros(tape.HEADER_SIZE, np.int64)
    threads = threads_of(options)
    with ExitStack() as stack:
        store = WeightStore(matrices, stack.enter_context(Arena(weight_bytes)), None, None)
        stages = []
        for each in plans:
            kept = stack.enter_context(Arena(_attention_bytes(each)))
            assembler = Assembler(
                (), each.plan, store, (), kept, kernels, context=1, rows=each.rows, attend=attend
            )
            tape_ = assembler.assemble(lambda count: None)
            memory = EncoderMemory(each.plan, tape_, each.rows, threads, stack)
            stages.append(_Stage(each, tape_, memory))
        team = stack.enter_context(running_team(threads, header, kernels["work"].callable(4)))
        run = kernels["run"].callable(2)
        encoder = TapeEncoder(program, stages, team, header, run, weight_bytes)
        try:
            yield encoder
        finally:
            encoder.leave()


def _stage_plans(
    program: EncoderProgram, format_of: Callable[[str], Format]
) -> Iterator[_StagePlan]:
    """A plan for each part of a program between two changes of the number of rows."""
    rows = program.rows
    stage: list[EncoderOperation] = []
    for operation in program.operations:
        if isinstance(operation, PixelShuffle):
            yield _StagePlan(make_stage_plan(stage, format_of), rows, stage[-1].out)
            rows //= operation.factor**2
            stage = []
        stage.append(operation)
    yield _StagePlan(make_stage_plan(stage, format_of), rows, stage[-1].out)


def _require(weight_bytes: int, options: LaneOptions) -> None:
    """Raises LaneUnavailable for weights that memory or the budget can't hold."""
    if options.weight_budget is not None and weight_bytes > options.weight_budget:
        raise LaneUnavailable(
            f"--weight-budget is {options.weight_budget} bytes, and the vision tower, which stays "
            f"in memory, takes {weight_bytes}; choose a larger budget"
        )
    require_memory(Needs(weight_bytes, lambda context: 0), options, available_memory())


def _attention_unit(formats: Iterable[Format], variant: Variant) -> str:
    """In bfloat16 where activations are rounded anyway, and the machine multiplies it."""
    rounded = variant.dot and all(each.kind != tape.KIND_F32 for each in formats)
    return "attend-all-bf16" if rounded else "attend-all-f32"


def _attention_bytes(each: _StagePlan) -> int:
    """Bytes of the keys and values of a stage's attention."""
    sizes = [
        2 * item.heads * all_head_bytes(each.rows, item.q.width // item.heads)
        for item in each.plan.items
        if isinstance(item, AttendAll)
    ]
    return max(sizes, default=0)
