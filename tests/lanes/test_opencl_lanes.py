"""The OpenCL lanes choose their devices, and refuse by name what they cannot do."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from structlog.testing import capture_logs

from caldrix.models.builder import ProgramBuilder
from caldrix.models.encoder_program import EncoderBuilder
from caldrix.models.lane import LaneOptions, LaneUnavailable, find_lane
from caldrix.models.program import KvCache, Program
from caldrix_opencl import devices, lane
from caldrix_opencl.devices import Device, chosen
from caldrix_opencl.lane import HipLane, HostLane, OpenClLane
from tests.support import opencl as support
from tests.support.compiled import float_tensor
from tests.support.opencl import on_host, require_device
from tests.support.random_models import random_model

RADEON = Device("AMD Accelerated Parallel Processing", "gfx1100", "1", True, 24 * 2**30)
LARGER = Device("rusticl", "gfx942", "1", True, 192 * 2**30, vendor="AMD")
OTHER_GPU = Device("Somebody's OpenCL", "gpu", "1", True, 2**30)
PROCESSOR = Device("Portable Computing Language", "cpu", "1", False, 2**30)
FOUND = (RADEON, OTHER_GPU, PROCESSOR, LARGER)


def one_operation() -> Program:
    b = ProgramBuilder("none", vocab_size=1, max_context=1)
    return b.logits(b.select(b.embed("e", 1)), "e")


def with_devices(monkeypatch: pytest.MonkeyPatch, found: Sequence[Device]) -> None:
    monkeypatch.setattr(lane, "devices", lambda: found)
    for module in (lane, devices):
        monkeypatch.setattr(module, "is_installed", lambda: True)


def test_each_lane_takes_its_own_devices() -> None:
    assert HipLane().choose(FOUND) == [RADEON, LARGER]
    assert HostLane().choose(FOUND) == [PROCESSOR]


def test_only_amd_gpus_verify_drafts() -> None:
    assert (HipLane().verifies_drafts, HostLane().verifies_drafts) == (True, False)


def test_the_device_named_or_the_one_with_most_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, FOUND)
    for name, expected in (("hip", LARGER), ("hip:0", RADEON), ("hip:1", LARGER)):
        found = find_lane(name)
        assert isinstance(found, OpenClLane)
        assert found.device() == expected
    assert HipLane().describe()["runs models"] == "on gfx942"
    with pytest.raises(
        LaneUnavailable, match=r"no device hip:2; there are hip:0 \(gfx1100\), hip:1 \(gfx942\)"
    ):
        find_lane("hip:2").compile(one_operation(), {}, LaneOptions(context=1))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hip:", "--backend hip: names no device; write hip:0 for the first"),
        ("hip:one", "--backend hip:one names no device"),
        ("cpu:0", "the cpu lane has one device; write --backend cpu"),
        ("abacus", "installed: cpu, hip, host"),
        ("abacus:1", "installed: cpu, hip, host"),
    ],
)
def test_names_of_no_lane_or_device(name: str, message: str) -> None:
    with pytest.raises(LaneUnavailable, match=message):
        find_lane(name)


def test_what_is_missing_is_told_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_devices(monkeypatch, (OTHER_GPU,))
    monkeypatch.setattr(devices, "_KFD", tmp_path / "kfd")
    monkeypatch.setattr(devices, "_DRI", tmp_path / "dri")

    def told(lane: OpenClLane) -> str:
        with pytest.raises(LaneUnavailable) as refused:
            lane.compile(one_operation(), {}, LaneOptions(context=1))
        assert lane.describe()["runs models"] == "no"
        return str(refused.value)

    assert "apt install pocl-opencl-icd" in told(HostLane())
    with monkeypatch.context() as unwritable:
        unwritable.setenv("POCL_CACHE_DIR", str(tmp_path / "file" / "pocl"))
        (tmp_path / "file").touch()
        assert "file/pocl, which cannot be written; set POCL_CACHE_DIR" in told(HostLane())
    assert "modprobe amdgpu" in told(HipLane())
    (tmp_path / "kfd").touch()
    assert "apt install rocm-opencl-runtime" in told(HipLane())
    nodes = [tmp_path / "dri" / f"renderD{number}" for number in (128, 129)]
    (tmp_path / "dri").mkdir()
    for node in nodes:
        node.touch()
    for closed, said in (
        ((), "apt install rocm-opencl-runtime"),
        # Another GPU's node is nobody's business.
        (nodes[:1], "apt install rocm-opencl-runtime"),
        (nodes, f"may not open {nodes[0]}; usermod -aG render,video"),
        ([tmp_path / "kfd"], f"may not open {tmp_path / 'kfd'}; usermod -aG render,video"),
    ):
        monkeypatch.setattr(os, "access", lambda path, mode, closed=closed: path not in closed)
        assert said in told(HipLane())
    for module in (lane, devices):
        monkeypatch.setattr(module, "is_installed", lambda: False)
    assert told(HipLane()) == "the hip lane needs pyopencl; pip install 'caldrix[opencl]'"


@pytest.mark.parametrize("name", ["hip", "host"])
def test_what_the_lanes_do_not_have_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, FOUND)
    program = one_operation()
    seeing = EncoderBuilder("none", rows=1)
    seeing.input(1)
    for options, flag in (
        (LaneOptions(context=1, threads=2), "--threads, and 2"),
        (LaneOptions(context=1, weight_budget=5), "--weight-budget, and 5"),
    ):
        with pytest.raises(LaneUnavailable, match=f"the {name} lane has no {flag} was asked for"):
            find_lane(name).compile(program, {}, options)
        with pytest.raises(LaneUnavailable, match=f"the {name} lane has no {flag} was asked for"):
            find_lane(name).compile_encoder(seeing.build(), {}, options)


def test_states_are_kept_on_the_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with_devices(monkeypatch, FOUND)
    model = random_model("qwen3_5", "F32")
    with pytest.raises(
        LaneUnavailable, match="the hip lane runs no qwen3_5 model; use --backend cpu, or host"
    ):
        HipLane().compile(model.program, model.weights, LaneOptions(context=1))


def test_most_memory_is_asked_of_devices_alone() -> None:
    with pytest.raises(LaneUnavailable, match="the host lane"):
        chosen((), None, "host")
    assert chosen((RADEON, LARGER), None, "hip") == LARGER


def test_a_context_that_does_not_fit_is_refused_before_anything_is_taken() -> None:
    require_device()
    b = ProgramBuilder("none", vocab_size=16, max_context=2**40)
    x = b.embed("e", 16)
    program = b.logits(b.select(b.attend(x, x, x, KvCache(1, 16), heads=1, scale=1.0)), "e")
    weights = {"e": float_tensor(np.zeros((16, 16)))}
    with (
        pytest.raises(LaneUnavailable, match=r"a context of \d+ tokens .* --context \d+ fits"),
        on_host(program, weights, context=2**40),
    ):
        pass


def test_a_failed_build_keeps_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = require_device()
    from caldrix_opencl.build import Builder
    from caldrix_opencl.context import opened

    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path))
    with (
        opened(device) as context,
        pytest.raises(LaneUnavailable, match=r"matmul\.cl; its log is .*failed-\w+\.log"),
    ):
        Builder(context).program(["lanes", "weights", "matmul"], {"TOKENS": "nothing"})
    (log,) = (tmp_path / "opencl").glob("failed-*.log")
    assert "-DTOKENS=nothing" in log.read_text()
    assert "error:" in log.read_text()


def test_binaries_are_kept_and_damaged_ones_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a driver that keeps none of its own."""
    device = require_device()
    cl = pytest.importorskip("pyopencl")
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path))
    from caldrix_opencl import build
    from caldrix_opencl.context import opened

    monkeypatch.setattr(build, "has_src_build_cache", lambda _: False)
    built: list[str] = []
    from_source = build.Builder._built_from

    def counting(self: build.Builder, text: str, sources: Sequence[str], *others: Any) -> Any:
        built.append(sources[-1])
        return from_source(self, text, sources, *others)

    monkeypatch.setattr(build.Builder, "_built_from", counting)

    def start(driver: str) -> None:
        # As in another process.
        monkeypatch.setattr(build, "_BUILT", {})
        with opened(evolve(device, driver=driver)) as context:
            program = build.Builder(context).program(["lanes", "norm"], {"PARTS": 1})
            assert cl.Kernel(program, "rms_norm").num_args > 0

    start("1")
    start("1")
    assert built == ["norm"]
    start("2")
    assert built == ["norm"] * 2
    first, second = (tmp_path / "opencl").iterdir()
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(second.read_bytes()[:-1])
    start("2")
    start("2")
    assert built == ["norm"] * 3

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(build, "write_object", full)
    with capture_logs() as logs:
        start("3")
    assert [entry["event"] for entry in logs] == ["kernels_not_kept"]


@pytest.mark.parametrize(
    ("most", "expected"), [(1024, (8, 4, 16)), (64, (4, 4, 4)), (16, (1, 1, 1))]
)
def test_a_gpu_is_given_no_larger_groups_than_it_takes(
    most: int, expected: tuple[int, int, int]
) -> None:
    pytest.importorskip("pyopencl")
    from caldrix_opencl.context import CPU, shape_for

    shape = shape_for(evolve(RADEON, group_size=most))
    assert (shape.split, shape.heads, shape.parts) == expected
    assert shape_for(evolve(PROCESSOR, group_size=most)) == CPU


@pytest.mark.parametrize(("wave", "heads"), [(32, 2), (64, 4), (0, 4)])
def test_heads_that_attend_together_are_one_wave(wave: int, heads: int) -> None:
    pytest.importorskip("pyopencl")
    from caldrix_opencl.context import shape_for

    assert shape_for(evolve(RADEON, group_size=1024, wave=wave)).heads == heads


def test_a_device_that_has_to_be_there_is_never_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "host_device", lambda: "no driver")
    monkeypatch.delenv(support.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="OpenCL is not tested: no driver"):
        require_device()
    monkeypatch.setenv(support.REQUIRED, "1")
    with pytest.raises(pytest.fail.Exception, match="OpenCL cannot be tested: no driver"):
        require_device()


def test_what_a_gpu_has_too_little_memory_for_is_refused_with_what_to_do() -> None:
    require_device()
    from caldrix_opencl.footprint import Footprint
    from caldrix_opencl.plan import make_plan

    model = random_model("llama", "F32")
    plan = make_plan(model.program, lambda name: "F32")
    options = LaneOptions(context=64)
    needs = Footprint.of(model.program, plan, model.weights, options, "f16")
    with pytest.raises(
        LaneUnavailable, match=r"weights take .*\(--dtype q8_0, q4_1\), or --backend"
    ):
        needs.require(Device("AMD", "small", "1", True, 2**28, most_bytes=2**28))


def test_doctor_says_what_a_device_is() -> None:
    device = require_device()
    facts = device.facts("host:0")
    for name, said in (
        ("memory", "GiB"),
        ("most in one piece", "GiB"),
        ("work-group", "up to "),
        ("language", "OpenCL C "),
        ("driver", device.driver),
    ):
        assert said in str(facts[f"host:0 {name}"])
    radeon = evolve(RADEON, wave=32, group_size=1024, computes_halves=True)
    assert radeon.facts("hip:0")["hip:0 work-group"] == "up to 1024, 32 at a time"
    assert radeon.facts("hip:0")["hip:0 float16 arithmetic"] == "yes"
    assert RADEON.facts("x")["x work-group"] == "up to 0, not known how many at a time"


def test_a_driver_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    device = require_device()
    cl = pytest.importorskip("pyopencl")

    class Broken:
        name = "Broken"

        @property
        def extensions(self) -> str:
            raise cl.LogicError("lost in the middle")

        def get_devices(self) -> list[object]:
            raise cl.RuntimeError("out of order")

    platforms = [
        *cl.get_platforms(),
        Broken(),
        SimpleNamespace(name="Odd", get_devices=lambda: [Broken()]),
    ]
    monkeypatch.setattr(cl, "get_platforms", lambda: platforms)
    with capture_logs() as logs:
        assert [each.name for each in devices.devices()] == [device.name]
    assert [(log["platform"], log["error"]) for log in logs] == [
        ("Broken", "out of order"),
        ("Odd", "lost in the middle"),
    ]


def test_a_pyopencl_that_does_not_load_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "is_installed", lambda: True)
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    told = str(HostLane().describe()["missing"])
    assert told.startswith("pyopencl does not load (")
    assert told.endswith("); pip install --force-reinstall pyopencl")
