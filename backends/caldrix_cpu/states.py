"""How compiled kernels lay out what an operation remembers of a row.

A convolution's inputs lie one token after another, filled up with zeros to whole vectors:
``[taps - 1][width]``. A delta rule's matrix lies in tiles of 16 value columns, with a line for each
key dimension: ``[heads][tiles][key_dim][16]``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

from caldrix.models.program import Convolve, DeltaRule
from caldrix_cpu.plan import Delta, Plan
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded, tiles_of

Remembering: TypeAlias = Convolve | DeltaRule
"""The operations with a state."""


def state_shape(operation: Remembering) -> tuple[int, ...]:
    """The shape of one row's state, float32."""
    if isinstance(operation, Convolve):
        return operation.taps - 1, padded(operation.x.width, TILE_ROWS)
    value_dim = operation.v.width // operation.heads
    return operation.heads, tiles_of(value_dim), key_dim(operation), TILE_ROWS


def key_dim(operation: DeltaRule) -> int:
    """Dimensions of a key."""
    return operation.k.width // operation.key_heads


def kept_bytes(operation: Remembering) -> int:
    """Bytes of one row's state; a multiple of a cache line."""
    return 4 * math.prod(state_shape(operation))


def remembering(plan: Plan) -> Iterator[Remembering]:
    """The operations of a plan whose states compiled kernels keep."""
    for item in plan.items:
        if isinstance(item, Convolve):
            yield item
        elif isinstance(item, Delta):
            yield item.operation
