"""A weight as its file holds it: a name, a shape, a block format and bytes that stay mapped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from caldrix.weights import blocks
from caldrix.weights.blocks import BlockFormat, Float32
from caldrix.weights.errors import CorruptFile, printable

__all__ = ["BlockFormat", "Checkpoint", "Float32", "Tensor"]


@frozen(eq=False)
class Tensor:
    """A read-only tensor, row-major: the last dimension is contiguous (``[out, in]`` of a linear).

    ``data`` is ``uint8 [rows, row_bytes]``, usually a view of a mapped file, where ``rows`` is the
    product of all dimensions but the last.
    """

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    data: npt.NDArray[np.uint8]

    def to_float32(self) -> Float32:
        """All values, decoded into a new array, in ``shape``.

        Raises CorruptFile for a type that is not a weight's (I64, F8_E4M3, …).
        """
        return self._decode(self.data).reshape(self.shape)

    def rows_to_float32(self, rows: npt.NDArray[np.integer[Any]] | slice) -> Float32:
        """The chosen rows, decoded into a new array: ``[len(rows), shape[-1]]``.

        Raises CorruptFile as `to_float32` does, and IndexError for a row that is not there.
        """
        return self._decode(self.data[rows])

    def as_matrix(self) -> Tensor:
        """The same values as ``[shape[0], the rest]``; what has fewer dimensions stays as it is."""
        if len(self.shape) <= 2:
            return self
        rows, *rest = self.shape
        return evolve(self, shape=(rows, math.prod(rest)), data=self.data.reshape(rows, -1))

    def unpack(self) -> blocks.Unpacked:
        """All blocks taken apart into integers, scales and minima, for a quantized format.

        Raises CorruptFile for a format that holds no integers with scales.
        """
        if not blocks.is_quantized(self.format):
            raise CorruptFile(
                f"tensor {printable(self.name)} is {self.format.name}, which is not quantized"
            )
        return blocks.unpack(self.format, self.data)

    def _decode(self, data: npt.NDArray[np.uint8]) -> Float32:
        if self.format.name not in blocks.FORMATS:
            raise CorruptFile(
                f"type {self.format.name} of tensor {printable(self.name)} is not supported "
                f"for weights; supported are {', '.join(blocks.FORMATS)}"
            )
        return blocks.decode(self.format, data)


class Checkpoint(Protocol):
    """A model's files, opened: tensors by the names their file gives them, and what describes them.

    A context manager: leaving it unmaps the files.
    """

    @property
    def path(self) -> Path:
        """The file or directory that was opened."""
        ...

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor, by name."""
        ...
