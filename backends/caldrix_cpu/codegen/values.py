"""Reading a step's header, a tape's records, and the rows that values lie in."""

from __future__ import annotations

from numba import float32

from caldrix_cpu import tape
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import load, load_float, load_int, splat, store, store_float


@kernel
def field(record: int, index: int) -> int:
    """One int64 of a table at an address."""
    return load_int(record + 8 * index)


@kernel
def row_in(header: int, thread: int, value: int, token: int, small: int) -> int:
    """Where a token's row of a value begins; ``small``: whether local values are a thread's own."""
    if value & 1:
        stride = load_int(header + 8 * tape.LOCAL_STRIDE)
        if small:
            own = load_int(header + 8 * tape.OWN_LOCAL_BYTES)
            base = load_int(header + 8 * tape.OWN_LOCAL) + thread * own
        else:
            base = load_int(header + 8 * tape.LOCAL)
    else:
        stride = load_int(header + 8 * tape.SHARED_STRIDE)
        base = load_int(header + 8 * tape.SHARED)
    return base + token * stride + (value >> 1)


@kernel
def row_of(header: int, thread: int, value: int, token: int) -> int:
    """Where a token's row of a value begins, before tokens are selected."""
    return row_in(header, thread, value, token, load_int(header + 8 * tape.SMALL))


@kernel
def thread_scratch(header: int, thread: int) -> int:
    """A thread's own scratch memory."""
    return load_int(header + 8 * tape.SCRATCH) + thread * load_int(header + 8 * tape.SCRATCH_BYTES)


@kernel
def rounded_up(value: int, multiple: int) -> int:
    """The next multiple at or above a value."""
    return (value + multiple - 1) // multiple * multiple


@kernel
def copy_floats(target: int, source: int, count: int) -> None:
    """So many float32, and nothing past them."""
    whole = count // 16 * 16
    for column in range(0, whole, 16):
        store(target + 4 * column, load(source + 4 * column))
    for column in range(whole, count):
        store_float(target + 4 * column, load_float(source + 4 * column))


@kernel
def pad(row: int, width: int) -> None:
    """Zeros from a row's width to the end of its last vector."""
    for column in range(width, rounded_up(width, 16)):
        store_float(row + 4 * column, float32(0.0))


@kernel
def clear(place: int, size: int) -> None:
    """Zeros, in whole vectors of 64 bytes."""
    for offset in range(0, size, 64):
        store(place + offset, splat(float32(0.0)))
