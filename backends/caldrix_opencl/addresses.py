"""The device's memory that steps share, and where in it operations find their values."""

from __future__ import annotations

import numpy as np
import pyopencl as cl
from attrs import frozen

from caldrix.models.program import Value
from caldrix_opencl.plan import Norm, Plan, Product, is_logits, residual, results


@frozen(eq=False)
class StepBuffers:
    """The device's memory that steps share."""

    tokens: int
    """Rows of each matrix of the arena."""
    arena: cl.Buffer
    logits: cl.Buffer
    logits_stride: int
    places: cl.Buffer
    """``[tokens][2]``: each token's position and row."""
    slices: cl.Buffer
    """``[slices][4]``: a slice's first token, how many it has, its row, where in it they begin."""
    wanted: cl.Buffer
    """Which tokens' logits are asked for."""
    records: cl.Buffer
    """What segments of attention come to, ``[tokens][heads][segments][dim + 2]``."""


class Addresses:
    """Values' places as kernels take them."""

    def __init__(self, plan: Plan, buffers: StepBuffers) -> None:
        self._plan = plan
        self._buffers = buffers

    def at(self, value: Value, column: int = 0) -> tuple[np.uint64, np.int32]:
        """A value's place in the arena from a column on, and the floats from token to token."""
        place = self._plan.places[value]
        return np.uint64(place.at(self._buffers.tokens) + column), np.int32(place.stride)

    def residual(self, item: Product | Norm, column: int = 0) -> tuple[np.int64, np.int32]:
        """The same of what is added to an item's result; negative where nothing is."""
        added = residual(item)
        if added is None:
            return np.int64(-1), np.int32(0)
        at, stride = self.at(added, column)
        return np.int64(at), stride

    def out(self, product: Product, column: int = 0) -> tuple[cl.Buffer, np.uint64, np.int32]:
        """Where a product writes its results from a column on."""
        if is_logits(product):
            return self._buffers.logits, np.uint64(column), np.int32(self._buffers.logits_stride)
        return self._buffers.arena, *self.at(results(product)[0], column)
