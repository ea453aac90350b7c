"""Runs a Program in float32 with numpy: the reference for every faster kernel.

Each operation becomes a function over a list of registers, one for each Value. Projections of the
same input are one matrix product. A register is dropped after its last use, so a long prefill
keeps few of its matrices at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
from threadpoolctl import threadpool_limits

from caldrix.models.lane import LaneError, LaneOptions, PrefillSizes, Slice, Snapshot
from caldrix.models.program import Program
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu.memory import available_memory, float32_needs, require_memory, row_bytes
from caldrix_cpu.numpy_kernels import Kernel, compile_kernels
from caldrix_cpu.numpy_memory import RowMemory
from caldrix_cpu.numpy_step import Step, check_features
from caldrix_cpu.row_arrays import rows_in_arrays


class NumpyExecutor:
    """See `caldrix.models.lane.Executor`."""

    prefill = PrefillSizes()
    reproducible = False
    """BLAS adds up a token's products in another order where it computes more of them."""

    def __init__(
        self,
        program: Program,
        kernels: Sequence[Kernel],
        memory: RowMemory,
        options: LaneOptions,
    ) -> None:
        self.vocab_size = program.vocab_size
        self.row_bytes = row_bytes(program, options.context)
        self.rewinds = not program.states
        self._kernels = kernels
        self._width = program.operations[0].out.width
        self._rows = rows_in_arrays(
            [*memory.caches.values()], [*memory.states.values()], options.rows
        )
        self._registers = len(program.operations)
        self._options = options

    def step(self, slices: Sequence[Slice]) -> Float32:
        """Computes the slices; the result is a fresh array, ``[sum of wanted, vocab_size]``."""
        step = Step.of(slices)
        if step.positions.max() >= self._options.context:
            raise LaneError(f"a slice ends past the context of {self._options.context} positions")
        for part in slices:
            check_features(part, self._width)
            self._rows.check(part.row, part.start)
        for part in slices:
            self._rows.begin(part)
        registers: list[Float32 | None] = [None] * self._registers
        # exp overflows to infinity in a gate whose value is then exactly the limit, zero.
        with np.errstate(over="ignore"):
            for kernel in self._kernels:
                kernel.run(registers, step)
                for index in kernel.dead:
                    registers[index] = None
        logits = registers[-1]
        assert logits is not None
        for part in slices:
            self._rows.end(part)
        return logits

    def resumable(self, row: int, length: int) -> int:
        """Where to go on from: with the same bits as from scratch, if that is in such slices."""
        return self._rows.resumable(row, length)

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Copies keys, values and states."""
        self._rows.copy(source, target, length)

    def snapshot(self, row: int, length: int) -> Snapshot:
        """Copies them to memory of their own."""
        return self._rows.snapshot(row, length)

    def snapshot_bytes(self, length: int) -> int:
        """What that takes."""
        return self._rows.snapshot_bytes(length)

    def restore(self, snapshot: Snapshot, row: int) -> None:
        """Copies them back, to any row."""
        self._rows.restore(snapshot, row)

    def leave(self) -> None:
        """Ends its use: its rows' memory goes."""
        self._rows = rows_in_arrays((), (), self._options.rows)


@contextmanager
def numpy_executor(
    program: Program, weights: Mapping[str, Tensor], options: LaneOptions
) -> Iterator[NumpyExecutor]:
    """An executor that holds the decoded weights and KV caches while the block lasts.

    ``options.threads`` bounds the threads of numpy's BLAS, for the whole process. Raises
    LaneUnavailable for a model or a context that memory can't hold.
    """
    require_memory(float32_needs(program, options.rows), options, available_memory())
    memory = RowMemory.allocate(program, program.operations, options.rows, options.context)
    kernels = compile_kernels(program, weights, options, memory)
    executor = NumpyExecutor(program, kernels, memory, options)
    del memory
    with threadpool_limits(options.threads, user_api="blas"):
        try:
            yield executor
        finally:
            # Both hold the arrays; an executor that outlives the block must not.
            kernels.clear()
            executor.leave()
