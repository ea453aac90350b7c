"""What numpy kernels keep of each row from step to step: keys and values, and states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import numpy as np
from attrs import frozen

from caldrix.models.lane import Slice
from caldrix.models.program import Program, State
from caldrix.weights.tensor import Float32
from caldrix_cpu.numpy_attention import CacheArrays


@frozen(eq=False)
class StateArrays:
    """An operation's state, ``[rows, *shape]`` float32."""

    values: Float32

    @classmethod
    def allocate(cls, state: State, rows: int) -> Self:
        """Zeroed arrays."""
        return cls(np.zeros((rows, *state.shape), np.float32))

    def of(self, part: Slice) -> Float32:
        """The state of a slice's row, to be changed in place; zeros where a row begins anew."""
        state: Float32 = self.values[part.row]
        if part.start == 0:
            state[...] = 0
        return state

    def parts(self, row: int, length: int) -> Sequence[Float32]:
        """A view of a row's state, which is as large after any ``length``."""
        return [self.values[row]]


@frozen(eq=False)
class RowMemory:
    """All that numpy kernels keep of a Program's rows."""

    caches: tuple[CacheArrays, ...]
    """None where no attention is by numpy."""
    states: tuple[StateArrays, ...]

    @classmethod
    def allocate(cls, program: Program, rows: int, context: int, *, attends: bool = True) -> Self:
        """Zeroed; the system gives the memory as it is first written.

        Without ``attends`` others keep the keys and values.
        """
        caches = program.caches if attends else ()
        return cls(
            tuple(CacheArrays.allocate(cache, rows, context) for cache in caches),
            tuple(StateArrays.allocate(state, rows) for state in program.states),
        )


def state_bytes(program: Program) -> int:
    """Bytes of one row's states."""
    return sum(4 * math.prod(state.shape) for state in program.states)
