"""What the cpu lane refuses before any memory is taken, with the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from caldrix.models.decoder import Attention, Dimensions, pre_norm_decoder
from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.rope import base_frequencies
from caldrix_cpu.lane import KERNELS_VARIABLE, CpuLane
from caldrix_cpu.memory import Needs, available_memory, float32_needs, require_memory

GIB = 2**30
DIMS = Dimensions(
    hidden=1024, intermediate=4096, layers=16, heads=16, kv_heads=8, head_dim=64,
    vocab=32_000, max_context=131_072, eps=1e-5, tied=True,
)  # fmt: skip
# 1.06 GiB of weights, and 64 KiB of cache a position and row.
PROGRAM = pre_norm_decoder("llama", DIMS, (Attention(base_frequencies(1e4, 64), 0.125),) * 16)


NEEDS = float32_needs(PROGRAM, rows=1)


def refusal(needed: Needs, options: LaneOptions, available: int, **remedy: str) -> str:
    with pytest.raises(LaneUnavailable) as refused:
        require_memory(needed, options, available, **remedy)
    return str(refused.value)


def test_what_a_program_takes_in_float32() -> None:
    layer = 1024 * (1024 + 2 * 512) + 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024
    assert Needs(4 * (16 * layer + 32_000 * 1024 + 1024), 64 * 1024) == NEEDS
    assert float32_needs(PROGRAM, rows=3).kv_each_position == 3 * 64 * 1024


def test_weights_that_do_not_fit() -> None:
    assert refusal(NEEDS, LaneOptions(context=10), GIB // 2) == (
        "the model's weights take 1.1 GiB in float32, and 0.5 GiB of memory are available; "
        "choose a smaller model"
    )
    packed = Needs(3 * GIB, 1024, weights_kept="packed as q8_0")
    assert refusal(packed, LaneOptions(context=10), GIB, remedy="try --dtype q4_1") == (
        "the model's weights take 3.0 GiB packed as q8_0, and 1.0 GiB of memory are available; "
        "try --dtype q4_1"
    )


@pytest.mark.parametrize("needed", [NEEDS, Needs(GIB, 64 * 1024, kv_fixed=GIB // 4)])
def test_a_context_that_does_not_fit_names_the_one_that_does(needed: Needs) -> None:
    message = refusal(needed, LaneOptions(context=131_072), 2 * GIB)
    (number,) = re.findall(r"; --context (\d+) fits$", message)
    fitting = int(number)
    require_memory(needed, LaneOptions(context=fitting), 2 * GIB)
    refusal(needed, LaneOptions(context=fitting + 1), 2 * GIB)


def test_no_context_is_named_where_none_fits() -> None:
    options = LaneOptions(context=100)
    assert refusal(Needs(GIB, 1024), options, GIB + 1500).endswith("; choose a smaller model")
    windows = Needs(GIB, 0, kv_fixed=GIB)
    assert refusal(windows, options, GIB + 1500).endswith(
        "; ask for a far smaller --context, or choose a smaller model"
    )
    assert refusal(windows, LaneOptions(context=100, rows=2), GIB + 1500).endswith(
        ", and a smaller --max-batch takes less"
    )


def test_a_system_that_does_not_say_is_trusted() -> None:
    require_memory(NEEDS, LaneOptions(context=131_072), None)


def system(root: Path, files: dict[str, str]) -> Path:
    """A tree with some of the kernel's files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal:  9000000 kB\nMemFree: 1 kB\nMemAvailable:    4000000 kB\n"


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal: 1 kB\nMemAvailable: much kB\n"}, None),
        ({"proc/meminfo": MEMINFO}, 4_000_000 * 1024),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "1000\n",
                "sys/fs/cgroup/a/memory.max": "3000000\n",
                "sys/fs/cgroup/a/memory.current": "2500000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 1\ninactive_file 200000\n",
            },
            700_000,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/docker/x\n0::/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "5000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
                "sys/fs/cgroup/memory/memory.stat": "inactive_file 9\ntotal_inactive_file 300\n",
            },
            0,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "4:memory:/\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "6000\n",
            },
            4_000_000 * 1024,
        ),
    ],
)
def test_memory_is_what_the_system_and_its_groups_leave(
    tmp_path: Path, files: dict[str, str], available: int | None
) -> None:
    assert available_memory(system(tmp_path, files)) == available


def test_the_system_at_hand_has_memory() -> None:
    available = available_memory()
    assert available is None or available > 0


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (LaneOptions(1, dtype="q8_0"), "no choice of --dtype, and q8_0 was asked for"),
        (LaneOptions(1, kv_dtype="f16"), "no choice of --kv-dtype, and f16 was asked for"),
        (LaneOptions(1, weight_budget=7), "no choice of --weight-budget, and 7 was asked for"),
    ],
)
def test_choices_that_kernels_do_not_have(choice: LaneOptions, message: str) -> None:
    with pytest.raises(LaneUnavailable, match=f"^these kernels have {message}; leave it out$"):
        choice.refuse_choices("these kernels")
    LaneOptions(1, rows=2, threads=3).refuse_choices("these kernels")


def test_company_is_refused_where_it_would_change_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(KERNELS_VARIABLE, "numpy")
    with pytest.raises(LaneUnavailable, match="--max-batch 1"):
        CpuLane().compile(PROGRAM, {}, LaneOptions(context=10, rows=2))
