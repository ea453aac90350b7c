"""The cpu lane: which kernels run a Program on this machine's processor.

``CALDRIX_CPU_KERNELS`` names the kernels: ``numpy``, the reference, computes in float32.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import AbstractContextManager

import numpy as np

from caldrix.models.lane import Executor, LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix.weights.tensor import Tensor
from caldrix_cpu.features import cpu_features, usable_cores
from caldrix_cpu.numpy_executor import numpy_executor

KERNELS_VARIABLE = "CALDRIX_CPU_KERNELS"


class CpuLane:
    """Runs on the CPU. See `caldrix.models.lane.Lane`."""

    name = "cpu"

    def __init__(self) -> None:
        self._kernels = os.environ.get(KERNELS_VARIABLE, "numpy")
        if self._kernels != "numpy":
            raise LaneUnavailable(
                f"{KERNELS_VARIABLE}={self._kernels}: no such kernels; unset it, or set numpy"
            )

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        """An executor in float32; the decoded weights are freed when the block is left.

        Raises LaneUnavailable for more than one row: BLAS adds up one token and several tokens in
        different orders, and an answer must not depend on who else is served.
        """
        if options.rows > 1:
            raise LaneUnavailable(
                f"the numpy kernels compute one request at a time, not {options.rows}: "
                "their sums would differ in company; use --max-batch 1"
            )
        return numpy_executor(program, weights, options)

    def describe(self) -> Mapping[str, object]:
        """The processor, its cores and features, and the kernels in use."""
        return {
            "kernels": self._kernels,
            "machine": platform.machine(),
            "cores": usable_cores(),
            "features": list(cpu_features()),
            "numpy": np.__version__,
        }
