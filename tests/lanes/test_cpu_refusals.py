"""What the cpu lane refuses before any memory is taken, with the numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from caldrix.models.decoder import Attention, Dimensions, pre_norm_decoder
from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.rope import base_frequencies
from caldrix_cpu import compiled, memory, numpy_executor
from caldrix_cpu.lane import KERNELS_VARIABLE, CpuLane
from caldrix_cpu.memory import (
    Needs,
    available_memory,
    float32_needs,
    require_memory,
    system_memory,
)
from tests.support.compiled import BEST
from tests.support.random_models import random_model

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
    assert NEEDS.weights == 4 * (16 * layer + 32_000 * 1024 + 1024)
    assert NEEDS.caches(10) == 10 * 64 * 1024
    assert float32_needs(PROGRAM, rows=3).caches(10) == 3 * 10 * 64 * 1024


def test_weights_that_do_not_fit() -> None:
    assert refusal(NEEDS, LaneOptions(context=10), GIB // 2) == (
        "the model's weights take 1.1 GiB in float32, and 0.5 GiB of memory are available; "
        "choose a smaller model"
    )
    for kept, told in (("packed as q8_0", "3.0 GiB packed as q8_0"), ("", "3.0 GiB")):
        packed = Needs(3 * GIB, lambda context: 1024 * context, kept)
        assert refusal(packed, LaneOptions(context=10), GIB, remedy="try --dtype q4_1") == (
            f"the model's weights take {told}, and 1.0 GiB of memory are available; "
            "try --dtype q4_1"
        )


FEWER = "fewer rows (--max-batch, --prefix-rows) take less"


@pytest.mark.parametrize(
    ("rows", "beginning", "fits", "alas"),
    [
        (1, "a context of 100 tokens takes 1.5 GiB", "", ""),
        (3, "a context of 100 tokens in 3 rows takes 1.5 GiB", f", and {FEWER}", f"{FEWER}, or "),
    ],
)
def test_caches_that_do_not_fit(rows: int, beginning: str, fits: str, alas: str) -> None:
    options = LaneOptions(context=100, rows=rows)
    needed = Needs(GIB, lambda context: min(context, 50) * GIB // 50 + context * GIB // 200)
    for left, remedy in (
        (GIB + GIB // 4, f"--context 50 fits{fits}"),
        # Where the windowed layers, too, would keep every position.
        (GIB // 2, f"--context 20 fits{fits}"),
        (GIB // 50, f"{alas}choose a smaller model"),
    ):
        message = refusal(needed, options, GIB + left)
        assert message.startswith(f"{beginning} beside the model's 1.0 GiB, and ")
        assert message.endswith(f" GiB of memory are available; {remedy}")


@pytest.mark.parametrize("fitting", [300, 5000])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(
    ("kernels", "snapshots"), [("numpy", 0), ("numpy", 1), (BEST.name, 0), (BEST.name, 2)]
)
def test_the_context_that_fits_is_named(
    kernels: str, snapshots: int, family: str, fitting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the needs of a real model: at 300 positions a windowed layer, too, keeps them all.

    Snapshots count like rows where any are ever made, which numpy kernels don't.
    """
    module = numpy_executor if kernels == "numpy" else compiled
    asked: list[Needs] = []

    def require(needed: Needs, options: LaneOptions, available: int | None) -> None:
        asked.append(needed)
        available = needed.weights + needed.caches(fitting)
        require_memory(needed, options, available)

    monkeypatch.setattr(module, "require_memory", require)
    monkeypatch.setenv(KERNELS_VARIABLE, kernels)
    model, lane, rows = random_model(family, "F32"), CpuLane(), 1 if kernels == "numpy" else 3

    def open_with(context: int) -> None:
        options = LaneOptions(context=context, rows=rows, snapshots=snapshots, threads=1)
        with lane.compile(model.program, model.weights, options) as executor:
            most = rows + (snapshots if executor.reproducible else 0)
            assert asked[-1].caches(context) == most * executor.row_bytes

    with pytest.raises(LaneUnavailable) as refused:
        open_with(100_000)
    (number,) = re.findall(r"; --context (\d+) fits", str(refused.value))
    # Compiled kernels keep whole segments of 128 positions.
    assert int(number) == (fitting if kernels == "numpy" else -(-fitting // 128) * 128)
    open_with(int(number))
    with pytest.raises(LaneUnavailable, match=f"; --context {number} fits"):
        open_with(int(number) + 1)


def test_what_others_were_promised_is_not_available() -> None:
    options = LaneOptions(context=10, reserved=GIB)
    require_memory(NEEDS, options, 3 * GIB)
    assert "1.0 GiB of memory are available" in refusal(NEEDS, options, 2 * GIB)
    assert "0.0 GiB of memory are available" in refusal(NEEDS, options, GIB // 2)


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
    assert system_memory(system(tmp_path, files)) == available


def test_some_of_it_is_kept_for_all_but_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    for has, available in ((2**30, 3 * 2**28), (2**27, 0), (None, None)):
        monkeypatch.setattr(memory, "system_memory", lambda has=has: has)
        assert available_memory() == available


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
    with pytest.raises(LaneUnavailable, match="--max-batch 1 and no --prefix-rows"):
        CpuLane().compile(PROGRAM, {}, LaneOptions(context=10, rows=2))
