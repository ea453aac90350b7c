"""A step's slices, laid out for kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from attrs import frozen

from caldrix.models.lane import LaneError, Slice, TokenIds
from caldrix.weights.tensor import Float32


@frozen(eq=False)
class Step:
    """The slices of a step, laid out for kernels: all their tokens one after another."""

    slices: tuple[Slice, ...]
    tokens: TokenIds
    """``[tokens]``"""
    positions: TokenIds
    """``[tokens]``, each token's place in its row"""
    wanted: npt.NDArray[np.intp]
    """Indices of the tokens whose logits are asked for"""

    @classmethod
    def of(cls, slices: Sequence[Slice]) -> Self:
        """Lays out the slices."""
        positions = [np.arange(s.start, s.start + len(s.tokens)) for s in slices]
        ends = np.cumsum([len(s.tokens) for s in slices])
        wanted = [
            np.arange(end - s.wanted, end) for s, end in zip(slices, ends, strict=True) if s.wanted
        ]
        return cls(
            slices=tuple(slices),
            tokens=np.concatenate([s.tokens for s in slices]),
            positions=np.concatenate(positions),
            wanted=np.concatenate(wanted) if wanted else np.empty(0, np.intp),
        )

    def parts(self) -> Iterator[tuple[Slice, slice]]:
        """Each of the slices, and which of the step's tokens it is."""
        first = 0
        for part in self.slices:
            last = first + len(part.tokens)
            yield part, slice(first, last)
            first = last


def check_features(part: Slice, width: int) -> None:
    """Raises LaneError unless the features of a slice are as wide as embeddings are."""
    if part.features is not None and part.features.rows.shape[1] != width:
        raise LaneError(
            f"features are {part.features.rows.shape[1]} wide, and the model's embeddings {width}"
        )


def put_features(slices: Sequence[Slice], embeddings: Float32) -> None:
    """Puts the features of slices in the place of their tokens' embeddings, ``[tokens, width]``."""
    first = 0
    for each in slices:
        if each.features is not None:
            embeddings[first + each.features.places] = each.features.rows
        first += len(each.tokens)
