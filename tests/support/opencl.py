"""What tests of the OpenCL lanes share: a CPU device, where there is one, and models to run on it.

Both shapes of kernels run on it: those whose work-items have sixteen lanes each, as on the host
lane, and those that have one, as on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING

import pytest

from caldrix.models.lane import Executor, LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix.weights.tensor import Tensor
from caldrix_opencl.devices import Device
from caldrix_opencl.lane import HipLane, HostLane

if TYPE_CHECKING:
    from caldrix_opencl.executor import OpenClExecutor

SHAPES = ("cpu", "gpu")
REQUIRED = "CALDRIX_REQUIRE_OPENCL"
"""Set where a device has to be there: a test without one fails."""


@cache
def host_device() -> Device | str:
    """The device of the host lane, or why there is none."""
    try:
        return HostLane().device()
    except LaneUnavailable as error:
        return str(error)


def require_device() -> Device:
    """The device; skips the test where there is none, or fails it where one is `REQUIRED`."""
    device = host_device()
    if isinstance(device, str):
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and OpenCL cannot be tested: {device}")
        pytest.skip(f"OpenCL is not tested: {device}")
    return device


def on_host(
    program: Program,
    weights: Mapping[str, Tensor],
    *,
    shape: str = "cpu",
    context: int = 64,
    rows: int = 2,
    kv_dtype: str = "f32",
    picks: bool = False,
) -> AbstractContextManager[OpenClExecutor]:
    """An executor on the CPU device, in one of the `SHAPES`; without one, as `require_device`."""
    device = require_device()
    from caldrix_opencl.compiled import opencl_executor
    from caldrix_opencl.context import CPU, GPU

    options = LaneOptions(context=context, rows=rows, kv_dtype=kv_dtype, picks=picks)
    return opencl_executor(program, weights, options, device, {"cpu": CPU, "gpu": GPU}[shape])


class HipOnProcessor(HipLane):
    """The hip lane's rules and kernels, with the processor for a GPU."""

    def choose(self, found: Sequence[Device]) -> Sequence[Device]:
        return [device for device in found if not device.is_gpu]

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        from caldrix_opencl.compiled import opencl_executor
        from caldrix_opencl.context import GPU

        self._refuse(program, options)
        return opencl_executor(program, weights, options, self.device(), GPU)
