"""The worker threads of a compiled model: they compute beside the thread that steps.

A worker is inside machine code, without the GIL, for as long as steps follow one another closely:
it spins until the next one begins. After a few milliseconds without a step it parks on a semaphore
and costs nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from caldrix.models.lane import LaneUnavailable
from caldrix_cpu import tape

Header = npt.NDArray[np.int64]

_SPIN_SECONDS = 0.002
"""Longer than an engine takes between two steps, shorter than anybody would call busy."""
_TRIED_SPINS = 20_000


class Team:
    """Worker threads 1 to ``size`` - 1 of steps whose thread 0 calls `begin`."""

    def __init__(self, size: int, header: Header, work: Callable[..., int]) -> None:
        self.size = size
        self._steps = 0
        self._header = header
        self._work = work
        self._generation = np.zeros(8, np.int64)
        self._stopped = np.zeros(8, np.int64)
        header[tape.GENERATION] = self._generation.ctypes.data
        header[tape.STOPPED] = self._stopped.ctypes.data
        self._parked = [False] * size
        self._wake = [threading.Semaphore(0) for _ in range(size)]
        self._spins = self._calibrate() if size > 1 else 0
        self._threads = [
            threading.Thread(target=self._live, args=(number,), name=f"caldrix-cpu-{number}")
            for number in range(1, size)
        ]

    def _calibrate(self) -> int:
        """Spins that last as long as a worker should wait."""
        address = self._header.ctypes.data
        began = time.perf_counter()
        self._work(address, 0, 0, _TRIED_SPINS)
        lasted = time.perf_counter() - began
        return int(_TRIED_SPINS * _SPIN_SECONDS / max(lasted, 1e-9))

    def begin(self, threads: int) -> None:
        """Starts a step of the first ``threads`` threads; its header must be complete."""
        if self.size == 1:
            return
        # The GIL orders this with a worker's own look at the generation before it parks.
        self._steps += 1
        self._generation[0] = self._steps * (tape.MOST_THREADS + 1) + threads
        for number in range(1, threads):
            if self._parked[number]:
                self._parked[number] = False
                self._wake[number].release()

    def _live(self, number: int) -> None:
        seen = 0
        while True:
            seen = self._work(self._header.ctypes.data, number, seen, self._spins)
            if self._stopped[0]:
                return
            self._parked[number] = True
            if self._generation[0] != seen and self._parked[number]:
                self._parked[number] = False
                continue
            self._wake[number].acquire()
            if self._stopped[0]:
                return

    def _start(self) -> None:
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError as error:
                raise LaneUnavailable(
                    f"the system gives no {self.size} threads ({error}); choose fewer --threads"
                ) from error

    def _stop(self) -> None:
        self._stopped[0] = 1
        self._generation[0] += tape.MOST_THREADS + 1
        for semaphore in self._wake:
            semaphore.release()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()


@contextmanager
def running_team(size: int, header: Header, work: Callable[..., int]) -> Iterator[Team]:
    """A team whose threads live as long as the block.

    Raises LaneUnavailable where the system gives no more threads.
    """
    team = Team(size, header, work)
    try:
        team._start()
        yield team
    finally:
        team._stop()
