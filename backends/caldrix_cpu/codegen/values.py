"""Reading a step's header, a tape's records, and the rows that values lie in."""

from __future__ import annotations

from caldrix_cpu import tape
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import load_int


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
