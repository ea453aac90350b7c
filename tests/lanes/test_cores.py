"""How many cores a process has, by files as kernels and containers write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix_cpu.cores import Cores, cores, read_cores, usable_cores

UNIFIED, LEGACY = "0::/a/b\n", "3:cpuset:/\n2:cpu,cpuacct:/a/b\n1:name=systemd:/\n0::/\n"


def system(root: Path, files: dict[str, str]) -> Path:
    """A tree with some of the kernel's files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def siblings(**lists: str) -> dict[str, str]:
    """The files that say which CPUs share a core."""
    place = "sys/devices/system/cpu/{}/topology/thread_siblings_list"
    return {place.format(cpu): text for cpu, text in lists.items()}


@pytest.mark.parametrize(
    ("group", "limits", "quota"),
    [
        ("", {}, None),
        (UNIFIED, {}, None),
        (UNIFIED, {"a/b/cpu.max": "max 100000\n"}, None),
        (UNIFIED, {"a/b/cpu.max": "200000 100000\n"}, 2),
        (UNIFIED, {"a/b/cpu.max": "150000 100000\n"}, 2),
        (UNIFIED, {"a/b/cpu.max": "1000 100000\n"}, 1),
        # The tightest group decides, wherever in the path it is.
        (UNIFIED, {"a/b/cpu.max": "400000 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        (UNIFIED, {"a/b/cpu.max": "300000 100000\n", "cpu.max": "500000 100000\n"}, 3),
        # Inside a container the path can be the host's, and the root all that there is to see.
        (UNIFIED, {"cpu.max": "300000 100000\n"}, 3),
        ("0::/../../other\n", {"cpu.max": "300000 100000\n"}, 3),
        ("2:cpu:/\n0::/a\n", {"unified/a/cpu.max": "300000 100000\n"}, 3),
        (LEGACY, {"cpu/a/b/cpu.cfs_quota_us": "-1\n", "cpu/a/b/cpu.cfs_period_us": "9\n"}, None),
        (LEGACY, {"cpu/a/cpu.cfs_quota_us": "250\n", "cpu/a/cpu.cfs_period_us": "100\n"}, 3),
        (LEGACY, {"cpuset/cpu.cfs_quota_us": "100\n", "cpuset/cpu.cfs_period_us": "100\n"}, None),
        # Malformed files limit nothing.
        (UNIFIED, {"a/b/cpu.max": "200000\n"}, None),
        (UNIFIED, {"a/b/cpu.max": "two 100000\n"}, None),
        (UNIFIED, {"a/b/cpu.max": "200000 0\n"}, None),
        (UNIFIED, {"a/b/cpu.max": "200000 -100000\n"}, None),
        ("no group\n", {"cpu.max": "100000 100000\n"}, None),
        (LEGACY, {"cpu/a/cpu.cfs_quota_us": "250\n"}, None),
    ],
)
def test_the_quota(tmp_path: Path, group: str, limits: dict[str, str], quota: int | None) -> None:
    files = {f"sys/fs/cgroup/{name}": text for name, text in limits.items()}
    root = system(tmp_path, {"proc/self/cgroup": group, **files})
    assert read_cores(root, range(8)).quota == quota


@pytest.mark.parametrize(
    ("lists", "physical"),
    [
        ({}, 4),
        ({"cpu0": "0-1\n", "cpu1": "0-1\n", "cpu2": "2-3\n", "cpu3": "2-3\n"}, 2),
        # The affinity has one thread of each of these cores.
        ({"cpu0": "0,4\n", "cpu1": "1,5\n", "cpu2": "2,6\n", "cpu3": "3,7\n"}, 4),
        ({"cpu0": "0,2\n", "cpu1": "1,3\n", "cpu2": "0,2\n", "cpu3": "1,3\n"}, 2),
        ({"cpu0": "0-\n", "cpu1": "\n", "cpu2": "7\n", "cpu3": "2-99999999\n"}, 4),
    ],
)
def test_hardware_threads_of_one_core_count_once(
    tmp_path: Path, lists: dict[str, str], physical: int
) -> None:
    assert read_cores(system(tmp_path, siblings(**lists)), range(4)).physical == physical


@pytest.mark.parametrize(
    ("found", "usable", "threads"),
    [
        (Cores(affinity=8, physical=4, quota=None), 8, 4),
        (Cores(affinity=8, physical=4, quota=6), 6, 4),
        (Cores(affinity=8, physical=4, quota=3), 3, 3),
        (Cores(affinity=2, physical=2, quota=16), 2, 2),
    ],
)
def test_the_smallest_of_them_counts(found: Cores, usable: int, threads: int) -> None:
    assert (found.usable, found.compute_threads) == (usable, threads)


@given(text=st.text(max_size=40))
def test_any_text_is_taken(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    root = system(
        tmp_path_factory.mktemp("root"),
        {
            "proc/self/cgroup": f"0::/\n2:cpu:/{text}\n{text}",
            "sys/fs/cgroup/cpu.max": text,
            **siblings(cpu0=text),
        },
    )
    found = read_cores(root, [0])
    assert (found.affinity, found.physical) == (1, 1)
    assert found.quota is None or found.quota >= 1


def test_the_machine_at_hand() -> None:
    found = cores()
    assert 1 <= found.compute_threads <= found.usable == usable_cores() <= found.affinity
