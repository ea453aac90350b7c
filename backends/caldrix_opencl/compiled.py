"""From a Program to an executor on a device: plan, memory, weights, kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from caldrix.models.lane import LaneOptions
from caldrix.models.program import Attend, Convolve, DeltaRule, Program
from caldrix.weights.tensor import Tensor
from caldrix_cpu.memory import Needs, available_memory, require_memory
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.assemble import Assembler, StepBuffers, record_floats
from caldrix_opencl.context import MOST_TOGETHER, Context, Shape, opened, starting
from caldrix_opencl.devices import Device
from caldrix_opencl.executor import MOST_LOGITS, ROOM, OpenClExecutor
from caldrix_opencl.picks import Picker, picker_bytes
from caldrix_opencl.plan import Plan, make_plan
from caldrix_opencl.rows import Cache, CacheLayout, State, state_bytes
from caldrix_opencl.weights import Layouts, WeightStore, matrix_bytes, other_bytes, products


@contextmanager
def opencl_executor(
    program: Program,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    device: Device,
    shape: Shape | None = None,
) -> Iterator[OpenClExecutor]:
    """An executor on a device while the block lasts; leaving it gives the memory back.

    Raises LaneUnavailable for what the device cannot give.
    """
    layouts = Layouts(weights, options)
    plan = make_plan(program, layouts.of)
    kv_dtype = "f16" if options.kv_dtype == "auto" else options.kv_dtype
    layouts.note_others()
    with opened(device, shape) as context:
        _require(program, plan, weights, options, device, kv_dtype)
        with starting(device):
            executor = _assembled(program, weights, options, plan, kv_dtype, context)
            executor.make_ready()
        try:
            yield executor
        finally:
            executor.leave()


def _assembled(
    program: Program,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    plan: Plan,
    kv_dtype: str,
    context: Context,
) -> OpenClExecutor:
    """An executor with all the memory and the kernels that it will ever have."""
    caches = []
    for cache in program.caches:
        layout = CacheLayout.of(cache, options.context, kv_dtype)
        size = options.rows * layout.row_bytes
        caches.append(Cache(layout, context.allocate(size), context.allocate(size)))
    states = []
    for operation in _remembering(program):
        size = state_bytes(operation)
        states.append(State(size, context.allocate(options.rows * size)))
    buffers = _step_buffers(program, plan, options, caches, context)
    assembler = Assembler(
        context, plan, WeightStore(weights, context), caches, states,
        [cache.window for cache in program.caches], buffers, options.context, options.progress,
    )  # fmt: skip
    picker = None
    if options.picks:
        most = _most_picks(options)
        picker = Picker(context, buffers.logits, program.vocab_size, most, options.context)
    return OpenClExecutor(
        program, weights, options, context, plan, caches, states, buffers, assembler.launches(),
        _row_bytes(program, [cache.layout for cache in caches]), picker,
    )  # fmt: skip


def _most_picks(options: LaneOptions) -> int:
    """Tokens that are picked in one go: one for each row, and only so many at a time."""
    return min(options.rows, MOST_LOGITS)


def _remembering(program: Program) -> list[Convolve | DeltaRule]:
    """The operations with a state, in the order of their states."""
    each = [item for item in program.operations if isinstance(item, Convolve | DeltaRule)]
    return sorted(each, key=lambda operation: operation.state)


def _row_bytes(program: Program, layouts: Sequence[CacheLayout]) -> int:
    """Bytes of a row's keys, values and states."""
    return sum(2 * layout.row_bytes for layout in layouts) + sum(
        map(state_bytes, _remembering(program))
    )


def _step_buffers(
    program: Program, plan: Plan, options: LaneOptions, caches: Sequence[Cache], context: Context
) -> StepBuffers:
    stride = padded(program.vocab_size, TILE_ROWS)
    attending = [each for each in program.operations if isinstance(each, Attend)]
    records = max(
        (
            record_floats(each.heads, caches[each.cache].layout.head_dim, options.context)
            for each in attending
        ),
        default=0,
    )
    return StepBuffers(
        tokens=ROOM,
        arena=context.allocate(4 * plan.floats * ROOM),
        logits=context.allocate(4 * stride * (MOST_LOGITS + MOST_TOGETHER)),
        logits_stride=stride,
        places=context.allocate(8 * ROOM),
        slices=context.allocate(16 * ROOM),
        wanted=context.allocate(4 * MOST_LOGITS),
        records=context.allocate(4 * records),
    )


def _require(
    program: Program,
    plan: Plan,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    device: Device,
    kv_dtype: str,
) -> None:
    """Raises LaneUnavailable if weights and full caches are more than the device has."""
    matrices = sum(matrix_bytes(product, weights) for product in products(plan))

    def caches(context: int) -> int:
        each = [CacheLayout.of(cache, context, kv_dtype) for cache in program.caches]
        return options.most_rows * _row_bytes(program, each)

    has = device.memory_bytes if device.is_gpu else available_memory()
    needs = matrices + other_bytes(plan, weights) + 4 * plan.floats * ROOM
    if options.picks:
        needs += picker_bytes(program.vocab_size, _most_picks(options), options.context)
    require_memory(Needs(needs, caches), options, has)
