"""Whether resident memory stays flat: its slope over the second half of a load."""

from __future__ import annotations

import math
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
from attrs import define, field

MOST_PER_REQUEST = 1024
"""Bytes that memory may grow for each request, on the average of the second half."""
ALLOWANCE = 4 * 2**20
"""Bytes more over the second half, which allocators take and give back as they like."""
LEAST_REQUESTS = 1000
"""A shorter load is all warm-up: rows, buffers and caches are touched for the first time."""
_SAMPLES = 200


def resident(process: int) -> int:
    """Bytes of a process that are in memory."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


@define
class MemoryCurve:
    """A process's memory as requests are done."""

    read: Callable[[], int]
    requests: int
    """How many are to come."""
    _done: list[int] = field(factory=list, init=False)
    _bytes: list[int] = field(factory=list, init=False)

    def note(self, done: int) -> None:
        """So many requests are done; reads the memory now and then."""
        if done % max(1, self.requests // _SAMPLES) == 0:
            self._done.append(done)
            self._bytes.append(self.read())

    @property
    def ends(self) -> tuple[int, int]:
        """Bytes at the beginning and at the end."""
        return self._bytes[0], self._bytes[-1]

    @property
    def growth(self) -> float:
        """Bytes by which the second half's line of least squares rises."""
        half = len(self._done) // 2
        done, held = np.array(self._done[half:], float), np.array(self._bytes[half:], float)
        if len(done) < 2:
            return 0.0
        slope = np.polyfit(done, held, 1)[0]
        return float(slope * (done[-1] - done[0]))

    @property
    def bound(self) -> float:
        """What the growth may be; no limit where that would be a matter of chance."""
        if self.requests < LEAST_REQUESTS:
            return math.inf
        return ALLOWANCE + MOST_PER_REQUEST * self.requests / 2
