"""A step's slices, laid out for kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
from attrs import frozen

from caldrix.models.lane import Slice, TokenIds


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
