"""From a Program to an executor on a device: plan, memory, weights, kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pyopencl as cl

from caldrix.models.lane import ContextUnavailable, LaneOptions
from caldrix.models.program import Program
from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.addresses import StepBuffers
from caldrix_opencl.assemble import Assembler
from caldrix_opencl.context import (
    MOST_TOGETHER,
    Context,
    DeviceFull,
    Shape,
    is_full,
    opened,
    starting,
)
from caldrix_opencl.devices import Device
from caldrix_opencl.executor import MOST_LOGITS, ROOM, OpenClExecutor
from caldrix_opencl.footprint import Footprint, most_picks, remembering
from caldrix_opencl.picks import Picker
from caldrix_opencl.plan import Plan, make_plan
from caldrix_opencl.rows import Cache, State, state_bytes
from caldrix_opencl.weights import Layouts, WeightStore

_LEAST_WORTHWHILE = 16
"""Tokens of context below which none is named as one that fits."""


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
    footprint = Footprint.of(program, plan, weights, options, kv_dtype)
    footprint.require(device)
    with opened(device, shape) as context:
        with starting(device), _naming_what_fits(footprint, context):
            executor = _assembled(program, weights, options, plan, footprint, context)
            executor.make_ready()
            context.promise(options.snapshots * executor.row_bytes)
        try:
            yield executor
        finally:
            executor.leave()


@contextmanager
def _naming_what_fits(footprint: Footprint, context: Context) -> Iterator[None]:
    """A driver that runs out of memory, which others may have, has given so much until then.

    Raises DeviceFull, and ContextUnavailable where a shorter context fits into that.
    """
    try:
        yield
    except (DeviceFull, cl.Error) as error:
        if isinstance(error, DeviceFull):
            full = error
        elif is_full(error):
            full = DeviceFull(context.device, context.taken, error)
        else:
            raise
        # The driver itself needs some of it.
        fitting = footprint.fitting(full.taken - full.taken // 16)
        if not _LEAST_WORTHWHILE <= fitting < footprint.options.context:
            raise full from error
        gave = f"the {full.taken / 2**30:.1f} GiB that it gave"
        raise ContextUnavailable(
            f"{full}, and --context {fitting} fits into {gave}", fitting
        ) from error


def _assembled(
    program: Program,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    plan: Plan,
    footprint: Footprint,
    context: Context,
) -> OpenClExecutor:
    """An executor with all the memory and the kernels that it will ever have."""
    # Before anything is packed, so that what does not fit is told at once.
    store = WeightStore(weights, context, plan, options.progress)
    buffers = _step_buffers(program, plan, options, footprint, context)
    states = []
    for operation in remembering(program):
        size = state_bytes(operation)
        states.append(State(size, context.allocate(options.rows * size)))
    caches = []
    for layout in footprint.layouts(options.context):
        size = options.rows * layout.row_bytes
        caches.append(Cache(layout, context.allocate(size), context.allocate(size)))
    assembler = Assembler(
        context, plan, store, caches, states,
        [cache.window for cache in program.caches], buffers, options.context,
    )  # fmt: skip
    picker = None
    if options.picks:
        most = most_picks(options)
        picker = Picker(context, buffers.logits, program.vocab_size, most, options.context)
    return OpenClExecutor(
        program, weights, options, context, plan, caches, states, buffers, assembler.launches(),
        footprint.row_bytes(options.context), picker,
    )  # fmt: skip


def _step_buffers(
    program: Program, plan: Plan, options: LaneOptions, footprint: Footprint, context: Context
) -> StepBuffers:
    stride = padded(program.vocab_size, TILE_ROWS)
    return StepBuffers(
        tokens=ROOM,
        arena=context.allocate(4 * plan.floats * ROOM),
        logits=context.allocate(4 * stride * (MOST_LOGITS + MOST_TOGETHER)),
        logits_stride=stride,
        places=context.allocate(8 * ROOM),
        slices=context.allocate(16 * ROOM),
        wanted=context.allocate(4 * MOST_LOGITS),
        records=context.allocate(4 * footprint.record_floats(options.context)),
    )
