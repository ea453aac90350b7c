"""Whether a model fits into memory, found out before any is taken."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from attrs import frozen

from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.program import Program
from caldrix_cpu.cgroups import cgroup_folders, read_number, read_text

_FLOAT32 = 4
_GIB = 2**30
_LEAST_CONTEXT = 2
"""A token of prompt and one of answer."""


@frozen
class Needs:
    """Bytes that a model takes, as one set of kernels keeps it, all its rows together."""

    weights: int
    """What stays in memory of the weights."""
    kv_each_position: int
    """KV caches of the layers that keep every position, for one position of context."""
    kv_fixed: int = 0
    """KV caches of the layers that keep a window only, however long the context."""
    weights_kept: str = "in float32"
    """How the weights are kept, as a refusal says it: ``packed as q8_0``."""

    def cache(self, context: int) -> int:
        """Bytes of all KV caches with ``context`` positions a row."""
        return self.kv_fixed + context * self.kv_each_position


def float32_needs(program: Program, rows: int) -> Needs:
    """What a Program takes with weights and KV caches in float32, windowed layers kept in full."""
    weights = sum(math.prod(shape) for shape in program.weights.values())
    values = sum(2 * cache.kv_heads * cache.head_dim for cache in program.caches)
    return Needs(_FLOAT32 * weights, _FLOAT32 * rows * values)


def available_memory(root: Path = Path("/")) -> int | None:
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

    ``remedy`` is what to do about weights that are too large.
    """
    if available is None:
        return
    left = available - needed.weights
    if left < 0:
        raise LaneUnavailable(
            f"the model's weights take {_gib(needed.weights)} {needed.weights_kept}, and "
            f"{_gib(available)} of memory are available; {remedy}"
        )
    if needed.cache(options.context) > left:
        raise LaneUnavailable(
            f"a context of {options.context} tokens takes {_gib(needed.cache(options.context))} "
            f"beside the model's {_gib(needed.weights)}, and {_gib(available)} of memory are "
            f"available; {_context_remedy(needed, options, left, remedy)}"
        )


def _context_remedy(needed: Needs, options: LaneOptions, left: int, remedy: str) -> str:
    """What to do about KV caches that take more than the ``left`` bytes."""
    fitting = 0
    if needed.kv_each_position:
        fitting = (left - needed.kv_fixed) // needed.kv_each_position
    if fitting >= _LEAST_CONTEXT:
        remedy = f"--context {fitting} fits"
    elif needed.kv_fixed:
        # Below their window the windowed layers too take less.
        remedy = f"ask for a far smaller --context, or {remedy}"
    return remedy if options.rows == 1 else f"{remedy}, and a smaller --max-batch takes less"


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
