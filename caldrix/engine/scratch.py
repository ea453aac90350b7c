"""Arrays that are used again from pick to pick: fresh pages can cost more than what is computed."""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

_Number = TypeVar("_Number", np.float32, np.float64)


class _Arrays(threading.local):
    def __init__(self) -> None:
        self.by_use: dict[tuple[str, type], npt.NDArray[Any]] = {}


_arrays = _Arrays()


def scratch(use: str, size: int, dtype: type[_Number]) -> npt.NDArray[_Number]:
    """An array ``[size]`` with anything in it, for one use: it lasts until the thread's next one.

    Each thread keeps the largest array of each use.
    """
    array = _arrays.by_use.get((use, dtype))
    if array is None or array.size < size:
        array = _arrays.by_use[use, dtype] = np.empty(size, dtype)
    return array[:size]
