"""The cpu lane: which kernels run a Program on this machine's processor.

Kernels are compiled for a kind of processor (`caldrix_cpu.variants`), the best that this machine
is. ``CALDRIX_CPU_KERNELS`` names another kind that it can run, or ``numpy``: the reference, which
computes in float32.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager
from importlib.metadata import version

import numpy as np

from caldrix.models.encoder_program import EncoderProgram
from caldrix.models.lane import Encoder, Executor, LaneOptions, LaneUnavailable
from caldrix.models.program import Operation, Program
from caldrix.weights.tensor import Tensor
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.cores import cores
from caldrix_cpu.features import cpu_features
from caldrix_cpu.numpy_encoder import numpy_encoder
from caldrix_cpu.numpy_executor import numpy_executor
from caldrix_cpu.plan import COMPILED
from caldrix_cpu.tape_encoder import tape_encoder
from caldrix_cpu.variants import VARIANTS, Variant, executable_variants

KERNELS_VARIABLE = "CALDRIX_CPU_KERNELS"
NUMPY = "numpy"


class CpuLane:
    """Runs on the CPU. See `caldrix.models.lane.Lane`."""

    name = "cpu"
    picks = False
    usual_rows = 1

    def __init__(self) -> None:
        self._variant = _chosen_variant(os.environ.get(KERNELS_VARIABLE) or "auto")

    @property
    def verifies_drafts(self) -> bool:
        """The compiled kernels add up in one order, BLAS does not."""
        return self._variant is not None

    def batches(self, formats: Set[str]) -> bool:
        """Whatever the weights are kept in."""
        return True

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        """An executor; memory and threads are given back when the block is left.

        Raises LaneUnavailable for what does not fit into memory, and with the numpy kernels for
        more than one row: BLAS adds up one token and several tokens in different orders, and an
        answer must not depend on who else is served.
        """
        if self._variant is not None:
            return tape_executor(program, weights, options, self._variant)
        options.refuse_choices("the numpy kernels")
        if options.rows > 1:
            raise LaneUnavailable(
                f"the numpy kernels compute one request at a time, not {options.rows}: "
                "their sums would differ in company; use --max-batch 1 and no --prefix-rows"
            )
        return numpy_executor(program, weights, options)

    def compile_encoder(
        self, program: EncoderProgram, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Encoder]:
        """An encoder; memory and threads are given back when the block is left.

        Raises LaneUnavailable for what does not fit into memory.
        """
        if self._variant is not None:
            return tape_encoder(program, weights, options, self._variant)
        options.refuse_choices("the numpy kernels")
        return numpy_encoder(program, weights, options)

    def describe(self) -> Mapping[str, object]:
        """The processor, its cores and features, and the kernels in use."""
        found = cores()
        facts: dict[str, object] = {
            "kernels": NUMPY if self._variant is None else self._variant.name,
            "kernels that run here": [*(each.name for each in executable_variants()), NUMPY],
            "operations by numpy": _by_numpy(self._variant),
            "machine": platform.machine(),
            "cores": found.usable,
            "threads": found.compute_threads,
            "features": list(cpu_features()),
            "numpy": np.__version__,
            "numba": version("numba"),
        }
        return facts


def _chosen_variant(name: str) -> Variant | None:
    """The variant of that name, the best for ``auto``, None for numpy. Raises LaneUnavailable."""
    if name == NUMPY:
        return None
    possible = executable_variants()
    if name == "auto":
        return possible[0]
    if name not in VARIANTS:
        known = ", ".join([*VARIANTS, NUMPY])
        raise LaneUnavailable(
            f"{KERNELS_VARIABLE}={name}: no such kernels; unset it, or set one of {known}"
        )
    if VARIANTS[name] not in possible:
        missing = ", ".join(sorted(VARIANTS[name].needs - set(cpu_features())))
        raise LaneUnavailable(
            f"{KERNELS_VARIABLE}={name}: this processor lacks {missing}; unset it, or set one of "
            f"{', '.join([*(each.name for each in possible), NUMPY])}"
        )
    return VARIANTS[name]


def _by_numpy(variant: Variant | None) -> list[str]:
    """The operations that run in numpy, by name."""
    operations = set(Operation.__args__)
    return sorted(
        operation.__name__
        for operation in (operations if variant is None else operations - COMPILED)
    )
