"""Memory of a device: what goes up in pieces, what context fits, and what becomes of a lost one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from structlog.testing import capture_logs

from caldrix.models.builder import ProgramBuilder
from caldrix.models.lane import (
    ContextUnavailable,
    Executor,
    LaneError,
    LaneLost,
    LaneOptions,
    LaneUnavailable,
    PrefillSizes,
    Slice,
)
from caldrix.models.program import Activation, Program
from caldrix_opencl.devices import Device
from tests.support.compiled import Array, feed
from tests.support.opencl import SHAPES, require_device
from tests.support.random_models import Model, random_model, tokens
from tests.support.told import Told

cl = pytest.importorskip("pyopencl")

MIB = 2**20
BUFFER = cl.Buffer
TEXT = tokens(40, seed=3)


def piece(row: int, start: int, text: Sequence[int], wanted: int = 0) -> Slice:
    return Slice(row, start, np.array(text, np.int64), wanted)


def on_device(
    model: Model, device: Device, shape: str = "cpu", **options: Any
) -> AbstractContextManager[Executor]:
    from caldrix_opencl.compiled import opencl_executor
    from caldrix_opencl.context import CPU, GPU

    options = {"context": 64, "rows": 2, **options}
    return opencl_executor(
        model.program,
        model.weights,
        LaneOptions(**options),
        device,
        {"cpu": CPU, "gpu": GPU}[shape],
    )


def logits_of(model: Model, shape: str, told: Told) -> Array:
    with on_device(model, require_device(), shape, progress=told) as executor:
        return feed(executor, TEXT)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("family", "kind"), [("qwen2", "Q4_1"), ("gemma3", "F32")])
def test_weights_that_go_up_in_pieces_and_lie_in_several_are_the_same(
    family: str, kind: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With biases, gates, and what is added to a product."""
    require_device()
    from caldrix_opencl import weights

    model, whole, cut = random_model(family, kind), Told(), Told()
    expected = logits_of(model, shape, whole)
    real = weights.cut
    monkeypatch.setattr(weights, "cut", lambda product, most: real(product, 5))
    # A tile of 256 columns has 16 KiB in float32.
    monkeypatch.setattr(weights, "STAGING", 40 << 10)
    np.testing.assert_array_equal(logits_of(model, shape, cut), expected)
    for told in (whole, cut):
        (begun,) = told.begun
        assert begun == ("packing and uploading weights", told.done, "pieces")
        assert not told.notes
    assert cut.done > 2 * whole.done


def test_tiles_are_cut_into_lots_that_hold_them_all() -> None:
    require_device()
    from caldrix_opencl.plan import make_plan
    from caldrix_opencl.weights import Run, cut, products

    b = ProgramBuilder("none", vocab_size=40, max_context=1)
    x = b.embed("e", 32)
    b.linear(x, "a", 40)
    gated = b.gate(b.linear(x, "g", 70), b.linear(x, "u", 70), Activation.SILU)
    program = b.logits(b.select(b.linear(gated, "d", 32)), "e")
    plan = make_plan(program, lambda name: "F32" if name in "gu" else "F16")
    by_weight = {product.parts[0].weight: product for product in products(plan)}
    assert list(cut(by_weight["g"], 99)) == [(Run(0, 0, 5), Run(1, 0, 5))]
    assert list(cut(by_weight["g"], 5)) == [
        (Run(0, 0, 2), Run(1, 0, 2)), (Run(0, 2, 2), Run(1, 2, 2)), (Run(0, 4, 1), Run(1, 4, 1))
    ]  # fmt: skip
    assert list(cut(by_weight["a"], 2)) == [(Run(0, 0, 2),), (Run(0, 2, 1),)]


def test_a_device_whose_pieces_are_small_has_the_context_that_they_hold() -> None:
    # Of each layer 256 bytes a position in each of two rows.
    device = evolve(require_device(), most_bytes=8 * MIB)
    model, fitting = random_model("llama", "Q8_0"), 8 * MIB // (2 * 2 * 64 * 2)
    with (
        pytest.raises(ContextUnavailable, match=r"one piece, .*; --context \d+ fits") as refused,
        on_device(model, device, context=60_000, kv_dtype="f16"),
    ):
        pass
    assert refused.value.fitting == fitting
    with on_device(model, device, context=fitting, kv_dtype="f16") as executor:
        executor.step([piece(0, 0, TEXT, wanted=1)])


def test_what_cannot_be_cut_is_refused_by_name() -> None:
    require_device()
    from caldrix_opencl.context import opened
    from caldrix_opencl.plan import make_plan
    from caldrix_opencl.weights import WeightStore

    model = random_model("llama", "F32")
    plan = make_plan(model.program, lambda name: "F32")
    with (
        opened(evolve(require_device(), most_bytes=1000)) as context,
        pytest.raises(LaneUnavailable, match=r"at most 1000 bytes .* 16 rows of \S+ take more"),
    ):
        WeightStore(model.weights, context, plan)


def running_out_after(size: int) -> Callable[..., Any]:
    """A driver's allocation that has so many bytes."""
    left = size

    def allocate(context: Any, flags: Any, size: int) -> Any:
        nonlocal left
        left -= size
        if left < 0:
            raise cl.MemoryError(cl._cl._ErrorRecord("create_buffer", -4, ""))
        return BUFFER(context, flags, size)

    return allocate


def test_a_driver_that_runs_out_says_what_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    device = require_device()
    from caldrix_opencl.context import taken_of

    model, before = random_model("llama", "Q8_0"), taken_of(device)
    monkeypatch.setattr(cl, "Buffer", running_out_after(40 * MIB))
    with (
        pytest.raises(ContextUnavailable, match=r"is full .* --context \d+ fits") as refused,
        on_device(model, device, context=60_000),
    ):
        pass
    assert taken_of(device) == before
    fitting = refused.value.fitting
    assert 1000 < fitting < 60_000
    monkeypatch.setattr(cl, "Buffer", running_out_after(40 * MIB))
    with on_device(model, device, context=fitting) as executor:
        assert taken_of(device) > before + 2 * executor.row_bytes
        executor.step([piece(0, 0, TEXT, wanted=1)])
    assert taken_of(device) == before


def test_what_models_have_taken_of_a_gpu_others_cannot_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_device()
    from caldrix_opencl import footprint
    from caldrix_opencl.plan import make_plan

    model = random_model("llama", "Q8_0")
    options = LaneOptions(context=2**20, rows=1, reserved=2**60)
    plan = make_plan(model.program, lambda name: "Q8_0")
    needs = footprint.Footprint.of(model.program, plan, model.weights, options, "f16")
    total = needs.fixed + needs.growing(options.context)
    gpu = Device("AMD", "gpu", "1", True, total + 2**28, most_bytes=2**40)
    assert gpu.usable_bytes == total
    needs.require(gpu)
    monkeypatch.setattr(footprint, "taken_of", lambda device: total - needs.fixed - 2**26)
    with pytest.raises(ContextUnavailable) as refused:
        needs.require(gpu)
    assert needs.growing(refused.value.fitting) <= 2**26
    # A screen's share of a large one is larger.
    assert Device("AMD", "gpu", "1", True, 32 * 2**30).usable_bytes == 31 * 2**30


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_all_that_is_taken_was_counted(family: str) -> None:
    """On what is taken for a GPU, which is told what it needs before it is asked."""
    device = evolve(require_device(), is_gpu=True)
    from caldrix_opencl import footprint
    from caldrix_opencl.context import taken_of

    model, before, counted = random_model(family, "Q8_0"), taken_of(device), []
    real = footprint.Footprint.require

    def require(self: footprint.Footprint, device: Device) -> None:
        counted.append(self.fixed + self.growing(self.options.context))
        real(self, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(footprint.Footprint, "require", require)
        with on_device(model, device, "gpu", context=3000, snapshots=1) as executor:
            taken = taken_of(device) - before
            assert executor.prefill == PrefillSizes(alone=512, shared=256)
    assert taken_of(device) == before
    (needed,) = counted
    assert 0.98 * needed <= taken <= needed


@pytest.fixture
def executor() -> Iterator[Executor]:
    with on_device(random_model("llama", "Q8_0"), require_device()) as executor:
        executor.step([piece(0, 0, TEXT)])
        yield executor


USES: Sequence[tuple[str, Callable[[Executor], object]]] = (
    ("enqueue_nd_range_kernel", lambda executor: executor.step([piece(0, 40, [1], wanted=1)])),
    ("enqueue_copy", lambda executor: executor.step([piece(0, 40, [1], wanted=1)])),
    ("enqueue_copy", lambda executor: executor.copy_row(0, 1, 20)),
    ("enqueue_copy", lambda executor: executor.snapshot(0, 20)),
)


def lost(*arguments: object, **named: object) -> None:
    raise cl.RuntimeError("the bus fell off")


@pytest.mark.parametrize(("call", "use"), USES)
def test_a_device_that_fails_in_whatever_it_does_is_lost(
    call: str, use: Callable[[Executor], object], executor: Executor
) -> None:
    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(cl, call, lost)
        with pytest.raises(LaneLost, match=r"the device failed .* start the server again"):
            use(executor)
    for again in (use, lambda executor: executor.resumable(0, 1)):
        with pytest.raises(LaneLost):
            again(executor)


def out_of_resources(*arguments: object, **named: object) -> None:
    raise cl.MemoryError(cl._cl._ErrorRecord("enqueue", -5, ""))


def test_a_device_without_resources_for_anything_is_lost(executor: Executor) -> None:
    """As drivers say it of one that has failed, too."""
    with pytest.MonkeyPatch.context() as full:
        full.setattr(cl, "enqueue_nd_range_kernel", out_of_resources)
        with pytest.raises(LaneError, match="the device's memory is full") as once:
            executor.step([piece(0, 40, [1], wanted=1)])
        full.setattr(cl, "enqueue_copy", out_of_resources)
        with pytest.raises(LaneLost, match="OUT_OF_RESOURCES"):
            executor.step([piece(0, 0, TEXT)])
    assert not isinstance(once.value, LaneLost)


def test_no_memory_for_a_snapshot_is_no_loss(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        full.setattr(cl, "Buffer", running_out_after(0))
        with pytest.raises(LaneError, match="the device's memory is full"):
            executor.snapshot(0, 20)
    assert executor.resumable(0, 40) == 40
    assert executor.snapshot(0, 20).length == 20


class FailsAtItsEnd:
    """A queue and a buffer that can't be waited for or given back."""

    finished = 0

    def finish(self) -> None:
        self.finished += 1
        lost()

    def release(self) -> None:
        lost()


def test_a_device_that_fails_at_the_end_hides_no_other_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_device()
    from caldrix_opencl.context import opened

    broken = FailsAtItsEnd()

    def use(*, lost: bool = False) -> None:
        with opened(require_device()) as context:
            monkeypatch.setattr(context, "queue", broken)
            context._buffers.append(broken)
            context.lost = lost
            raise ZeroDivisionError

    with capture_logs() as logs:
        with pytest.raises(ZeroDivisionError):
            use()
        # One that was lost is not waited for: that might take for ever.
        with pytest.raises(ZeroDivisionError):
            use(lost=True)
    assert broken.finished == 1
    assert [entry["event"] for entry in logs] == ["device_failed_at_close"] * 3


def test_programs_without_anything_that_grows_have_room_for_any_context() -> None:
    require_device()
    from caldrix_opencl.footprint import Footprint
    from caldrix_opencl.plan import make_plan

    b = ProgramBuilder("none", vocab_size=16, max_context=2**40)
    program: Program = b.logits(b.select(b.embed("e", 16)), "e")
    model = random_model("llama", "F32")
    plan = make_plan(program, lambda name: "F32")
    weights = {"e": next(iter(model.weights.values()))}
    needs = Footprint.of(program, plan, weights, LaneOptions(context=2**40), "f16")
    needs.require(require_device())
    assert needs.fitting(needs.fixed) == 2**40
