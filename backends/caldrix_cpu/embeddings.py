"""Embeddings of a step's tokens: from the tiles of the output weights where those are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caldrix.models.lane import Slice
from caldrix.models.program import Embed
from caldrix.weights.tensor import Tensor
from caldrix_cpu.arena import address
from caldrix_cpu.assemble import Tape, float_bits
from caldrix_cpu.library import Kernel
from caldrix_cpu.numpy_step import put_features
from caldrix_cpu.plan import Plan, Projection
from caldrix_cpu.step_memory import StepMemory

_FEW = 8
"""Tokens up to which a call each is quicker than numpy with its several passes."""
_ARGUMENTS = 6


def embedding_of(plan: Plan) -> Embed:
    """What a Program's plan begins with."""
    assert isinstance(plan.begin, Embed), f"a Program does not begin with {plan.begin}"
    return plan.begin


def tied_output(plan: Plan, weights: Mapping[str, Tensor]) -> int | None:
    """The item whose tiles hold the embedding as its file does; None where there is none."""
    weight = embedding_of(plan).weight
    for index, item in enumerate(plan.items):
        if isinstance(item, Projection) and item.weights == (weight,):
            same = weights[weight].format.name
            return index if item.format.layout in (same, "F32") else None
    return None


def lookup_units(plan: Plan, weights: Mapping[str, Tensor]) -> list[str]:
    """The kernels that read a plan's embeddings from tiles."""
    index = tied_output(plan, weights)
    if index is None:
        return []
    item = plan.items[index]
    assert isinstance(item, Projection)
    return [f"lookup-{item.format.layout}"]


class Embeddings:
    """Writes tokens' embeddings, scaled, to where the first operation reads them."""

    def __init__(
        self,
        plan: Plan,
        tape_: Tape,
        weights: Mapping[str, Tensor],
        kernels: Mapping[str, Kernel],
        memory: StepMemory,
    ) -> None:
        embed = embedding_of(plan)
        self._tensor = weights[embed.weight]
        self._scale = np.float32(embed.scale)
        self._scale_bits = float_bits(embed.scale)
        self._out, self._padding = memory.embeddings, memory.embeddings_padding
        self._out_address, self._out_stride = address(self._out), self._out.strides[0]
        self._width = self._out.shape[1]
        index = tied_output(plan, weights)
        self._matrix = None if index is None else tape_.matrices[index]
        for unit in lookup_units(plan, weights):
            self._lookup = kernels[unit].callable(_ARGUMENTS)

    def write(self, slices: Sequence[Slice], count: int) -> None:
        """Writes a row for each token of the slices, ``count`` in all, or a row of features."""
        if self._padding.size:
            self._padding[:count] = 0
        if self._matrix is None or count > _FEW:
            tokens = [each.tokens for each in slices]
            together = tokens[0] if len(tokens) == 1 else np.concatenate(tokens)
            np.multiply(self._tensor.rows_to_float32(together), self._scale, self._out[:count])
        else:
            self._look_up(slices)
        put_features(slices, self._out)

    def _look_up(self, slices: Sequence[Slice]) -> None:
        """Each by a call of its own."""
        assert self._matrix is not None
        row = self._out_address
        weights, tile_bytes = self._matrix.address, self._matrix.tile_bytes
        for each in slices:
            for token in each.tokens.tolist():
                self._lookup(weights, tile_bytes, self._width, token, self._scale_bits, row)
                row += self._out_stride
