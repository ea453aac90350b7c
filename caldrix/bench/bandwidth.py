"""How fast this machine's main memory is read: the bound on decoding, which reads all weights."""

from __future__ import annotations

import os
import time
from statistics import median

import numpy as np
import trio
from attrs import frozen

_BYTES = 512 * 2**20
"""Far more than processor caches hold."""
_PASSES = 5


@frozen
class Bandwidth:
    """Bytes a second over several passes."""

    best: float
    median: float


class MemoryReader:
    """Reads an array of its own, each of ``threads`` threads a part of it.

    The part's numbers are combined by bitwise or, which costs numpy less than the reading does and
    is done without the GIL.
    """

    def __init__(self, threads: int, size: int = _BYTES) -> None:
        self._array = np.ones(size // 8, np.uint64)
        self._parts = np.array_split(self._array, threads)
        self._limiter = trio.CapacityLimiter(threads)

    def measure(self) -> Bandwidth:
        """Reads the whole array several times."""
        rates = trio.run(self._rates)
        return Bandwidth(max(rates), median(rates))

    async def _rates(self) -> list[float]:
        # The first pass starts the threads, and isn't counted.
        return [await self._rate() for _ in range(1 + _PASSES)][1:]

    async def _rate(self) -> float:
        began = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for part in self._parts:
                nursery.start_soon(self._read, part)
        return self._array.nbytes / (time.perf_counter() - began)

    async def _read(self, part: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> None:
        await trio.to_thread.run_sync(np.bitwise_or.reduce, part, limiter=self._limiter)


def usable_threads() -> int:
    """Processors this process may run on: the threads counted on where a lane doesn't say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
