"""A matrix's rows some tiles at a time, so that what repacks it needs little memory beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from attrs import frozen

from caldrix.weights.tensor import Tensor
from caldrix_cpu.tiles.layouts import TILE_ROWS, tiles_of

_Scalar = TypeVar("_Scalar", bound=np.generic)

# Values worked on at a time; a tile is the least. What is made of them stays in a core's cache, and
# is small enough for malloc to keep: memory fresh from the system takes as long as the packing.
_RUN_VALUES = 1 << 16


@frozen
class Run:
    """Tiles that follow one another, and the rows they hold; the last tile may lack some."""

    tiles: slice
    rows: slice


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """A weight's ``(rows, columns)``: all its dimensions but the last taken together, and the last.

    Raises ValueError for a tensor without two dimensions.
    """
    if len(tensor.shape) < 2:
        raise ValueError(f"{tensor.name} has shape {tensor.shape}, which is no matrix")
    return len(tensor.data), tensor.shape[-1]


def runs(rows: int, columns: int) -> Iterator[Run]:
    """Cut a matrix into runs of whole tiles."""
    tiles = tiles_of(rows)
    step = max(1, _RUN_VALUES // max(1, TILE_ROWS * columns))
    for start in range(0, tiles, step):
        stop = min(start + step, tiles)
        yield Run(slice(start, stop), slice(start * TILE_ROWS, min(stop * TILE_ROWS, rows)))


def whole_tiles(values: npt.NDArray[_Scalar], width: int) -> npt.NDArray[_Scalar]:
    """A run's rows ``[rows, w]`` as ``[tiles, 16, width]``, padded with zeros where they end."""
    rows, given = values.shape
    tiles = tiles_of(rows)
    if (rows, given) != (tiles * TILE_ROWS, width):
        grown = np.zeros((tiles * TILE_ROWS, width), values.dtype)
        grown[:rows, :given] = values
        values = grown
    return values.reshape(tiles, TILE_ROWS, width)
