"""Whether a model fits into memory, found out before any is taken."""

from __future__ import annotations

import math
from pathlib import Path

from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.program import Program

_MEMINFO = Path("/proc/meminfo")
_FLOAT32 = 4
_GIB = 2**30


def weight_bytes(program: Program) -> int:
    """Bytes of a program's weights in float32."""
    return _FLOAT32 * sum(math.prod(shape) for shape in program.weights.values())


def cache_bytes_each_position(program: Program, rows: int) -> int:
    """Bytes that one position of context takes in all KV caches, keys and values in float32."""
    values = sum(2 * cache.kv_heads * cache.head_dim for cache in program.caches)
    return _FLOAT32 * rows * values


def available_memory() -> int | None:
    """Bytes that can be taken without swapping; None where the system doesn't say."""
    if not _MEMINFO.exists():
        return None
    for line in _MEMINFO.read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def require_memory(program: Program, options: LaneOptions, available: int | None) -> None:
    """Raises LaneUnavailable if weights and full KV caches are more than is available."""
    if available is None:
        return
    weights = weight_bytes(program)
    if weights > available:
        raise LaneUnavailable(
            f"the model's weights take {weights / _GIB:.1f} GiB in float32, and "
            f"{available / _GIB:.1f} GiB of memory are available; choose a smaller model"
        )
    position = cache_bytes_each_position(program, options.rows)
    fitting = (available - weights) // position
    if options.context > fitting:
        raise LaneUnavailable(
            f"a context of {options.context} tokens takes "
            f"{options.context * position / _GIB:.1f} GiB beside the model's "
            f"{weights / _GIB:.1f} GiB, and {available / _GIB:.1f} GiB of memory are available; "
            f"--context {fitting} fits"
        )
