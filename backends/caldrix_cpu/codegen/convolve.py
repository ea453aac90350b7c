"""The causal convolution of each column: slices and runs of columns among the threads.

A token's products are summed up from the oldest input to its own, wherever those are: in the step
or, from steps before, in the row's state.
"""

from __future__ import annotations

from numba import float32, int32

from caldrix_cpu import tape
from caldrix_cpu.codegen.functions import activated
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    choose,
    fetch_and_increment,
    fma,
    lane_numbers,
    less,
    load,
    load_int,
    splat,
    splat_int,
    store,
)
from caldrix_cpu.codegen.values import clear, field, rounded_up, row_of

_PIECES = 4
"""Runs of columns for each thread."""
_LEAST_COLUMNS = 64


@kernel
def _input(x: int, stride: int, state: int, state_stride: int, kept: int, number: int) -> int:
    """Where input ``number`` of a slice begins; negative ones are the last of the row's state."""
    if number < 0:
        return state + (kept + number) * state_stride
    return x + number * stride


@kernel
def _convolve_columns(
    header: int, record: int, thread: int, part: int, first: int, last: int
) -> None:
    """A slice's results in columns ``first`` to ``last``, whole vectors, and then its state."""
    width, kept = field(record, tape.WIDTH), field(record, tape.TAPS) - 1
    weights, activation = field(record, tape.TAP_WEIGHTS), field(record, tape.ACTIVATION)
    begun, tokens = field(part, tape.UNIT_TOKEN), field(part, tape.UNIT_TOKENS)
    line = 4 * rounded_up(width, 16)
    state = field(record, tape.STATE) + field(part, tape.UNIT_ROW) * field(record, tape.STATE_BYTES)
    x = row_of(header, thread, field(record, tape.X), begun)
    stride = row_of(header, thread, field(record, tape.X), begun + 1) - x
    if field(part, tape.UNIT_START) == 0:
        for number in range(kept):
            clear(state + number * line + 4 * first, 4 * (last - first))
    for token in range(tokens):
        out = row_of(header, thread, field(record, tape.OUT), begun + token)
        for column in range(first, last, 16):
            total = splat(float32(0.0))
            for tap in range(kept + 1):
                place = _input(x, stride, state, line, kept, token - kept + tap) + 4 * column
                total = fma(load(place), load(weights + tap * line + 4 * column), total)
            within = less(lane_numbers(), splat_int(int32(width - column)))
            result = choose(within, activated(total, activation), splat(float32(0.0)))
            store(out + 4 * column, result)
    # In ascending order: a state's inputs that stay move forward in it.
    for number in range(kept):
        source = _input(x, stride, state, line, kept, tokens - kept + number)
        for column in range(first, last, 16):
            store(state + number * line + 4 * column, load(source + 4 * column))


@kernel
def convolve(header: int, record: int, thread: int, counter: int) -> None:
    """Convolves a step's tokens, and keeps the last inputs of each row."""
    width, threads = rounded_up(field(record, tape.WIDTH), 16), load_int(header + 8 * tape.THREADS)
    slices = load_int(header + 8 * tape.SLICES)
    size = max(rounded_up(width // (_PIECES * threads), _LEAST_COLUMNS), _LEAST_COLUMNS)
    pieces = (width + size - 1) // size
    units = load_int(header + 8 * tape.SLICE_COUNT) * pieces
    while True:
        unit = fetch_and_increment(counter)
        if unit >= units:
            break
        part, first = slices + unit // pieces * 8 * tape.UNIT_SIZE, unit % pieces * size
        _convolve_columns(header, record, thread, part, first, min(first + size, width))
