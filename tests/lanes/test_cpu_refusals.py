"""What the cpu lane refuses before any memory is taken, with the numbers."""

from __future__ import annotations

import pytest

from caldrix.models.decoder import Attention, Dimensions, pre_norm_decoder
from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.rope import base_frequencies
from caldrix_cpu.lane import CpuLane
from caldrix_cpu.memory import available_memory, require_memory

GIB = 2**30
DIMS = Dimensions(
    hidden=1024, intermediate=4096, layers=16, heads=16, kv_heads=8, head_dim=64,
    vocab=32_000, max_context=131_072, eps=1e-5, tied=True,
)  # fmt: skip
# 1.06 GiB of weights, and 64 KiB of cache a position.
PROGRAM = pre_norm_decoder("llama", DIMS, (Attention(base_frequencies(1e4, 64), 0.125),) * 16)


def test_weights_that_do_not_fit() -> None:
    with pytest.raises(LaneUnavailable, match=r"weights take 1\.1 GiB.* 0\.5 GiB .*smaller model"):
        require_memory(PROGRAM, LaneOptions(context=10), GIB // 2)


def test_a_context_that_does_not_fit_names_the_one_that_does() -> None:
    with pytest.raises(LaneUnavailable, match=r"--context (\d+) fits") as refused:
        require_memory(PROGRAM, LaneOptions(context=131_072), 2 * GIB)
    fitting = int(str(refused.value).split("--context ")[1].split()[0])
    require_memory(PROGRAM, LaneOptions(context=fitting), 2 * GIB)
    with pytest.raises(LaneUnavailable):
        require_memory(PROGRAM, LaneOptions(context=fitting + 1), 2 * GIB)


def test_a_system_that_does_not_say_is_trusted() -> None:
    require_memory(PROGRAM, LaneOptions(context=131_072), None)
    available = available_memory()
    assert available is None or available > 0


def test_company_is_refused_where_it_would_change_answers() -> None:
    with pytest.raises(LaneUnavailable, match="--max-batch 1"):
        CpuLane().compile(PROGRAM, {}, LaneOptions(context=10, rows=2))
