"""Whether a model fits into memory, found out before any is taken."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen

from caldrix.models.lane import ContextUnavailable, LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix_cpu.cgroups import cgroup_folders, read_number, read_text
from caldrix_cpu.numpy_attention import cache_bytes
from caldrix_cpu.numpy_memory import state_bytes

_FLOAT32 = 4
_GIB = 2**30
_HEADROOM = 256 * 2**20
"""Bytes for all but the model: what a step computes with, connections, prompts, the program."""
LEAST_CONTEXT = 2
"""A token of prompt and one of answer."""


@frozen
class Needs:
    """Bytes that a model takes, as one set of kernels keeps it, all its rows together."""

    weights: int
    """What stays in memory of the weights."""
    caches: Callable[[int], int]
    """KV caches with so many positions of context, and states; never less with more."""
    weights_kept: str = ""
    """How the weights are kept, as a refusal says it after their size: ``in float32``."""


def float32_needs(program: Program, rows: int) -> Needs:
    """What a Program takes with weights and KV caches in float32, windowed layers kept in full."""
    weights = sum(math.prod(shape) for shape in program.weights.values())

    def caches(context: int) -> int:
        return rows * row_bytes(program, context)

    return Needs(_FLOAT32 * weights, caches, "in float32")


def row_bytes(program: Program, context: int) -> int:
    """Bytes of a row's states, and of its KV caches in float32, windowed layers kept in full."""
    return state_bytes(program.states) + sum(
        cache_bytes(cache, context) for cache in program.caches
    )


def available_memory() -> int | None:
    """Bytes that a model can take: what the system has, less what serving it takes besides.

    None where the system does not say.
    """
    has = system_memory()
    return None if has is None else max(0, has - _HEADROOM)


def system_memory(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken without swapping or passing a control group's limit.

    None where the system says neither.
    """
    return min([*_free_memory(root), *_group_memory(root)], default=None)


def require_memory(
    needed: Needs,
    options: LaneOptions,
    available: int | None,
    *,
    remedy: str = "choose a smaller model",
) -> None:
    """Raises LaneUnavailable if weights and full KV caches are more than is available.

    That is ContextUnavailable where a shorter context fits. What ``options`` reserve for others is
    not available. ``remedy`` is what to do about weights that are too large.
    """
    if available is None:
        return
    available = max(0, available - options.reserved)
    left = available - needed.weights
    if left < 0:
        size = f"{_gib(needed.weights)} {needed.weights_kept}".rstrip()
        raise LaneUnavailable(
            f"the model's weights take {size}, and {_gib(available)} of memory are available; "
            f"{remedy}"
        )
    caches = needed.caches(options.context)
    if caches > left:
        rows = f" in {options.rows} rows" if options.rows > 1 else ""
        told = (
            f"a context of {options.context} tokens{rows} takes {_gib(caches)} beside the model's "
            f"{_gib(needed.weights)}, and {_gib(available)} of memory are available; "
        )
        fewer = "fewer rows (--max-batch, --prefix-rows) take less"
        fitting = bisect_right(range(options.context), left, key=needed.caches) - 1
        if fitting >= LEAST_CONTEXT:
            told += f"--context {fitting} fits"
            raise ContextUnavailable(told if options.rows == 1 else f"{told}, and {fewer}", fitting)
        raise LaneUnavailable(told + (remedy if options.rows == 1 else f"{fewer}, or {remedy}"))


def _free_memory(root: Path) -> Iterator[int]:
    """What the whole system has left, where it tells."""
    free = _table(root / "proc/meminfo").get("MemAvailable")
    if free is not None:
        yield free * 1024


def _group_memory(root: Path) -> Iterator[int]:
    """What each control group that limits this process has left.

    Files that were read count as used, but the kernel gives up those not in use for the asking.
    """
    for folder in cgroup_folders("memory", root):
        for limit, usage, reclaimable in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most = read_number(read_text(folder / limit))
            used = read_number(read_text(folder / usage))
            if most is not None and used is not None:
                cached = _table(folder / "memory.stat").get(reclaimable, 0)
                yield max(0, most - used + cached)


def _table(path: Path) -> dict[str, int]:
    """The numbers in a file of lines ``name number`` or ``name: number kB``."""
    table = {}
    for line in read_text(path).splitlines():
        match line.split():
            case [name, word, *_] if (number := read_number(word)) is not None:
                table[name.removesuffix(":")] = number
    return table


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
