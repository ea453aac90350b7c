"""Large memory for a model: zeroed, aligned, on huge pages where the system has them.

A streaming read of weights crosses a page every few hundred nanoseconds; pages of 2 MiB instead of
4 KiB keep the processor's address translation out of the way.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from caldrix.models.lane import LaneUnavailable
from caldrix.weights.blocks import UInt8
from caldrix_cpu.tiles.layouts import LINE, padded

_HUGE_PAGE = 1 << 21


class Arena:
    """Bytes that are given out from the beginning on; all go when the block is left.

    Memory is taken from the system as it is first written, in huge pages unless ``huge`` is off, so
    an arena may be larger than needed. With ``spill_to`` it is a file in that folder, deleted when
    it is closed: its bytes come from the disk whenever they are read, as `drop` lets go of them.

    Raises LaneUnavailable for memory that is not to be had, and OSError for such a file.
    """

    def __init__(self, size: int, spill_to: Path | None = None, *, huge: bool = True) -> None:
        self._used = 0
        size = padded(max(size, 1), mmap.PAGESIZE) + _HUGE_PAGE
        self._memory = _anonymous(size, huge) if spill_to is None else _spilled(size, spill_to)
        self._bytes: UInt8 | None = np.frombuffer(self._memory, np.uint8)
        self._start = -self._bytes.ctypes.data % _HUGE_PAGE

    @property
    def used(self) -> int:
        """Bytes given out."""
        return self._used

    def take(self, size: int) -> UInt8:
        """So many zero bytes that begin on a cache line."""
        assert self._bytes is not None
        begin = self._start + self._used
        self._used += padded(size, LINE)
        if begin + size > len(self._bytes):
            raise LaneUnavailable(f"an arena of {len(self._bytes)} bytes is too small by planning")
        return self._bytes[begin : begin + size]

    def drop(self) -> None:
        """Lets the system take back what a file's pages hold in memory."""
        self._memory.flush()
        self._memory.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Gives the memory back, once nobody views it any more."""
        self._bytes = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _anonymous(size: int, huge: bool) -> mmap.mmap:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        memory = mmap.mmap(-1, size, flags=flags)
    except OSError as error:
        raise LaneUnavailable(
            f"{size / 2**30:.1f} GiB of memory are not to be had ({error.strerror}); choose a "
            "smaller --context, --max-batch, --prefix-rows or model"
        ) from error
    if huge and hasattr(mmap, "MADV_HUGEPAGE"):
        # A system without huge pages refuses the advice; small ones do as well.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _spilled(size: int, folder: Path) -> mmap.mmap:
    with tempfile.TemporaryFile(dir=folder) as file:
        # Asked for now: to write to a mapping whose disk is full would end the process.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        return mmap.mmap(file.fileno(), size)


def address(array: npt.NDArray[np.generic]) -> int:
    """Where an array begins."""
    return array.ctypes.data
