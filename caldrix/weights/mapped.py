"""Mapping a model's file into memory, read-only, and the tensors that view it."""

from __future__ import annotations

import mmap
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self

from caldrix.weights.errors import CorruptFile, ModelNotFound
from caldrix.weights.tensor import Tensor


class MappedTensors:
    """Tensors of mapped files. A context manager: a mapping goes with the last array on it."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors: Mapping[str, Tensor] = MappingProxyType(tensors)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Every tensor by name, in row-major shape. Empty once closed."""
        return self._tensors

    def close(self) -> None:
        """Let go of the files."""
        self._tensors = MappingProxyType({})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def map_file(path: Path) -> mmap.mmap:
    """Map a whole regular file. The mapping goes with the last array that views it.

    Raises ModelNotFound for a path where nothing is, and CorruptFile for one that is empty, is no
    regular file or cannot be read.
    """
    try:
        status = path.stat()
        # Asked before opening, because opening a named pipe would wait for its writer.
        if not stat.S_ISREG(status.st_mode):
            raise CorruptFile(f"{path} is not a regular file")
        if status.st_size == 0:
            raise CorruptFile(f"{path} is empty")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(f"{path} does not exist") from None
    except OSError as error:
        raise CorruptFile(f"{path} cannot be read: {error.strerror}") from error
