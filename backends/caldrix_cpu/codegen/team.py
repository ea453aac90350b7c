"""How the threads of a step meet, and how a worker waits for the next step.

Threads meet at a barrier: the last to arrive opens it for all. They spin, since the wait is
shorter than any call to the system would be, and give the core away when it lasts.
"""

from __future__ import annotations

from caldrix_cpu import tape
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    fetch_and_increment,
    load_acquire,
    load_int,
    spin_pause,
    store_release,
    yield_core,
)

_SPINS = 4000
"""Pauses, some 40 microseconds, before a waiting thread offers its core to others."""


@kernel
def barrier(header: int, threads: int) -> None:
    """Returns once so many threads have called it, or the team was stopped meanwhile."""
    if threads == 1:
        return
    arrivals = load_int(header + 8 * tape.ARRIVALS)
    phase = load_int(header + 8 * tape.PHASE)
    before = load_acquire(phase)
    if fetch_and_increment(arrivals) == threads - 1:
        store_release(arrivals, 0)
        store_release(phase, before + 1)
        return
    stopped = load_int(header + 8 * tape.STOPPED)
    spins = 0
    while load_acquire(phase) == before:
        spin_pause()
        spins += 1
        if spins > _SPINS:
            # The step's own thread may have met an exception on its way here.
            if load_acquire(stopped):
                return
            yield_core()


@kernel
def await_step(header: int, seen: int, spins: int) -> bool:
    """Spins until a step after ``seen`` begins, or for so long; whether one did."""
    generation = load_int(header + 8 * tape.GENERATION)
    for _ in range(spins):
        if load_acquire(generation) != seen:
            return True
        spin_pause()
    return False
