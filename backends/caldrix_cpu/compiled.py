"""From a Program to compiled kernels that run it: plan, machine code, weights, caches, threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import numpy as np

from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.program import Attend, Convolve, DeltaRule, Program
from caldrix.weights.cache import cache_root
from caldrix.weights.tensor import Tensor
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena
from caldrix_cpu.assemble import Assembler, units_of
from caldrix_cpu.cores import cores
from caldrix_cpu.embeddings import Embeddings, lookup_units
from caldrix_cpu.formats import Format, choose_format
from caldrix_cpu.kv_cache import bytes_of, layout_of
from caldrix_cpu.library import load_kernels
from caldrix_cpu.memory import Needs, available_memory, require_memory
from caldrix_cpu.numpy_attention import cache_bytes
from caldrix_cpu.numpy_memory import state_bytes
from caldrix_cpu.plan import COMPILED, ByNumpy, Plan, make_plan
from caldrix_cpu.runs import MOST_TOKENS
from caldrix_cpu.states import kept_bytes, remembering
from caldrix_cpu.step_memory import StepMemory
from caldrix_cpu.tape_executor import TapeExecutor
from caldrix_cpu.team import running_team
from caldrix_cpu.variants import Variant
from caldrix_cpu.weights import WeightStore, most_bytes


@contextmanager
def tape_executor(
    program: Program,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    variant: Variant,
    compiled: frozenset[type] = COMPILED,
) -> Iterator[TapeExecutor]:
    """An executor of compiled kernels while the block lasts; leaving it ends its threads.

    Raises LaneUnavailable for what this machine cannot give: memory, or a compiler's output.
    """
    kv_dtype = "f16" if options.kv_dtype == "auto" else options.kv_dtype
    formats: dict[str, Format] = {}

    def format_of(name: str) -> Format:
        if name not in formats:
            formats[name] = choose_format(weights[name], options.dtype, dot=variant.dot)
        return formats[name]

    plan = make_plan(program, format_of, compiled)
    if others := sorted(
        name for name, chosen in formats.items() if not chosen.is_of(options.dtype)
    ):
        options.progress.note(
            f"{len(others)} matrices are kept in bf16 instead of {options.dtype}, as their widths "
            f"are no multiples of 32: {', '.join(others[:3])}{', …' if len(others) > 3 else ''}"
        )
    caches = [layout_of(cache, options.context, MOST_TOKENS, kv_dtype) for cache in program.caches]
    weight_bytes = most_bytes(plan, weights)
    _require(program, plan, options, weight_bytes, kv_dtype)
    units = [*units_of(plan, kv_dtype), *lookup_units(plan, weights)]
    kernels = load_kernels(variant, units, options.progress)
    header = np.zeros(tape.HEADER_SIZE, np.int64)
    threads = threads_of(options)
    with ExitStack() as stack:
        memory = stack.enter_context(Arena(weight_bytes))
        spill = None
        if options.weight_budget is not None and weight_bytes > options.weight_budget:
            spill = stack.enter_context(_spill_arena(weight_bytes))
        store = WeightStore(weights, memory, options.weight_budget, spill)
        size = bytes_of(caches, options.rows) + options.rows * _compiled_state_bytes(plan)
        # In small pages: huge ones would make most of a row resident with its first token.
        cache_memory = stack.enter_context(Arena(size, huge=False))
        assembler = Assembler(
            program.caches, plan, store, caches, cache_memory, kernels,
            options.context, options.rows, f"attend-{kv_dtype}",
        )  # fmt: skip
        tape_ = assembler.assemble(lambda count: None)
        work = kernels["work"].callable(4)
        team = stack.enter_context(running_team(threads, header, work))
        step_memory = StepMemory(program, plan, tape_, options, caches, threads, header, stack)
        embeddings = Embeddings(plan, tape_, weights, kernels, step_memory)
        run = kernels["run"].callable(2)
        executor = TapeExecutor(
            program,
            weights,
            options,
            plan,
            tape_,
            team,
            step_memory,
            embeddings,
            run,
            spill,
            _row_bytes(program, plan, options.context, kv_dtype),
        )
        try:
            yield executor
        finally:
            executor.leave()


def threads_of(options: LaneOptions) -> int:
    """How many threads a team is to have. Raises LaneUnavailable for more than it can."""
    threads = options.threads or min(cores().compute_threads, tape.MOST_THREADS)
    if threads > tape.MOST_THREADS:
        raise LaneUnavailable(f"--threads is at most {tape.MOST_THREADS} here, got {threads}")
    return threads


def _spill_arena(size: int) -> Arena:
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Arena(size, spill_to=folder)
    except OSError as error:
        raise LaneUnavailable(
            f"--weight-budget needs room for weights in {folder}: {error.strerror}"
        ) from error


def _require(
    program: Program, plan: Plan, options: LaneOptions, weight_bytes: int, kv_dtype: str
) -> None:
    """Raises LaneUnavailable if weights and full caches are more than is available."""
    if options.weight_budget is not None:
        weight_bytes = min(weight_bytes, options.weight_budget)

    def caches(context: int) -> int:
        return options.most_rows * _row_bytes(program, plan, context, kv_dtype)

    require_memory(Needs(weight_bytes, caches), options, available_memory())


def _row_bytes(program: Program, plan: Plan, context: int, kv_dtype: str) -> int:
    """Bytes of a row's caches and states."""
    by_numpy = [item.operation for item in plan.items if isinstance(item, ByNumpy)]
    attending = {each.cache for each in by_numpy if isinstance(each, Attend)}
    states = [
        program.states[each.state] for each in by_numpy if isinstance(each, Convolve | DeltaRule)
    ]
    return (
        _compiled_state_bytes(plan)
        + state_bytes(states)
        + sum(
            cache_bytes(cache, context)
            if index in attending
            else bytes_of([layout_of(cache, context, MOST_TOKENS, kv_dtype)], rows=1)
            for index, cache in enumerate(program.caches)
        )
    )


def _compiled_state_bytes(plan: Plan) -> int:
    """Bytes of a row's states, but for those of operations by numpy."""
    return sum(map(kept_bytes, remembering(plan)))
