"""What numpy kernels keep of each row from step to step: keys and values, and states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import numpy as np
from attrs import frozen

from caldrix.models.lane import Slice
from caldrix.models.program import Attend, Convolve, DeltaRule, Operation, Program, State
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
    """All that numpy kernels keep of a Program's rows, by its caches' and states' numbers."""

    caches: Mapping[int, CacheArrays]
    states: Mapping[int, StateArrays]

    @classmethod
    def allocate(
        cls, program: Program, operations: Iterable[Operation], rows: int, context: int
    ) -> Self:
        """Zeroed, for those of a Program's operations that numpy runs.

        The system gives the memory as it is first written.
        """
        caches, states = {}, {}
        for operation in operations:
            match operation:
                case Attend(cache=number):
                    caches[number] = CacheArrays.allocate(program.caches[number], rows, context)
                case Convolve(state=number) | DeltaRule(state=number):
                    states[number] = StateArrays.allocate(program.states[number], rows)
        return cls(caches, states)


def state_bytes(states: Iterable[State]) -> int:
    """Bytes of one row's states."""
    return sum(4 * math.prod(state.shape) for state in states)
