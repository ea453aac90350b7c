"""What executors refuse of a step's slices: what would make kernels read or write past memory."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from caldrix.models.lane import LaneError, Slice
from caldrix_cpu.numpy_step import check_features


@frozen
class SliceLimits:
    """What slices have to stay within."""

    vocab_size: int
    context: int
    """Positions of a row."""
    width: int
    """Columns of an embedding."""

    def check(self, slices: Sequence[Slice]) -> None:
        """Raises LaneError; where a row can go on from is for its rows to say."""
        rows = [part.row for part in slices]
        if not rows or len(set(rows)) < len(rows):
            raise LaneError(f"a step takes slices of rows of their own, got {rows}")
        for part in slices:
            self._check(part)

    def _check(self, part: Slice) -> None:
        count = len(part.tokens)
        if not 0 <= part.wanted <= count:
            raise LaneError(f"a slice of {count} tokens has no {part.wanted} whose logits to give")
        for ids in (part.tokens, part.tokens if part.only is None else part.only):
            lowest, highest = int(ids.min()), int(ids.max())
            if lowest < 0 or highest >= self.vocab_size:
                raise LaneError(f"tokens are 0 to {self.vocab_size - 1}, not {lowest} to {highest}")
        if part.start + count > self.context:
            raise LaneError(f"a slice ends past the context of {self.context} positions")
        check_features(part, self.width)
