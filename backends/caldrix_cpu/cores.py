"""How many cores this process really has, and so how many threads to compute with.

A container's processor time is limited by a quota that the number of CPUs does not show; and two
hardware threads of a core share the units that matrix kernels keep busy.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from attrs import frozen

from caldrix_cpu.cgroups import cgroup_folders, read_number, read_text

_MOST_CPUS = 2**16


@frozen
class Cores:
    """What one process may use of a machine's processors."""

    affinity: int
    """CPUs, as the kernel counts them, that the process may be scheduled on."""
    physical: int
    """Cores that these are; fewer where two of them are hardware threads of one core."""
    quota: int | None
    """CPUs that its control groups give it time for, rounded up; None where nothing limits it."""

    @property
    def usable(self) -> int:
        """CPUs it can keep busy."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)

    @property
    def compute_threads(self) -> int:
        """Threads to compute with where nobody says: one a core, within the quota."""
        return self.physical if self.quota is None else min(self.physical, self.quota)


def cores() -> Cores:
    """The cores of this process, as of now."""
    return read_cores(Path("/"), _affinity())


def usable_cores() -> int:
    """CPUs this process can keep busy."""
    return cores().usable


def read_cores(root: Path, affinity: Collection[int]) -> Cores:
    """The cores that ``root``'s proc and sys tell of, for a process bound to the CPUs given.

    Files that are missing or malformed limit nothing.
    """
    quotas = [
        quota for folder in cgroup_folders("cpu", root) if (quota := _quota(folder)) is not None
    ]
    return Cores(
        affinity=len(affinity),
        physical=len({_siblings(root, cpu) for cpu in affinity}),
        quota=min(quotas, default=None),
    )


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _quota(folder: Path) -> int | None:
    """A group's own quota, by cpu.max (version 2) or by cpu.cfs_* (version 1)."""
    words = read_text(folder / "cpu.max").split() or [
        *read_text(folder / "cpu.cfs_quota_us").split(),
        *read_text(folder / "cpu.cfs_period_us").split(),
    ]
    match [read_number(word) for word in words]:
        case [int(quota), int(period)] if period > 0:
            return max(1, -(-quota // period))
    return None


def _siblings(root: Path, cpu: int) -> frozenset[int]:
    """The CPUs that share a core with ``cpu``, itself among them."""
    listed = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    alone = frozenset([cpu])
    siblings: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.partition("-")
        match (read_number(first), read_number(last or first)):
            case (int(start), int(end)) if end < _MOST_CPUS:
                siblings.update(range(start, end + 1))
            case _:
                return alone
    return frozenset(siblings) if cpu in siblings else alone
