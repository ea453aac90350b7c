"""Operations whose every row is computed by itself: norms, positions, gates and sums.

Each is ``operation(header, record, thread, first, last, small)`` and computes rows ``first`` to
``last`` - 1 of one record of the tape.
"""

from __future__ import annotations

from numba import float32

from caldrix_cpu import tape
from caldrix_cpu.codegen.activations import root_mean_square
from caldrix_cpu.codegen.functions import activated
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    float_of_bits,
    fma,
    load,
    load_float,
    load_int,
    splat,
    square_root_of,
    store,
    store_float,
    sum_lanes,
)
from caldrix_cpu.codegen.values import copy_floats, field, pad, row_in


@kernel
def norm(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """Each of a row's groups over the root of its mean square, times the weight."""
    weight, width = field(record, tape.NORM_WEIGHT), field(record, tape.NORM_WIDTH)
    eps, groups = float_of_bits(field(record, tape.NORM_EPS)), field(record, tape.GROUPS)
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        for group in range(groups):
            begin = 4 * group * width
            if groups == 1 or width % 16 == 0:
                scale = splat(root_mean_square(x + begin, width, eps))
                for column in range(0, width, 16):
                    place = begin + 4 * column
                    store(out + place, load(x + place) * scale * load(weight + 4 * column))
            else:
                _norm_part(x + begin, weight, width, eps, out + begin)
        if groups > 1:
            pad(out, groups * width)


@kernel
def _norm_part(x: int, weight: int, width: int, eps: float, out: int) -> None:
    """A part whose size is no multiple of 16, one number after another."""
    total = float32(0.0)
    for column in range(width):
        total += load_float(x + 4 * column) * load_float(x + 4 * column)
    scale = float32(1.0) / square_root_of(total / float32(width) + eps)
    for column in range(width):
        value = load_float(x + 4 * column) * scale * load_float(weight + 4 * column)
        store_float(out + 4 * column, value)


@kernel
def rope(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """Each head's pairs of dimensions, turned as far as the row's position says."""
    heads, dim = field(record, tape.HEADS), field(record, tape.HEAD_DIM)
    pairs, interleaved = field(record, tape.PAIRS), field(record, tape.INTERLEAVED)
    positions = load_int(header + 8 * tape.POSITIONS)
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        table = 4 * pairs * field(positions, token)
        cosines, sines = field(record, tape.COSINES) + table, field(record, tape.SINES) + table
        for head in range(heads):
            begin = 4 * dim * head
            for pair in range(pairs):
                cosine, sine = load_float(cosines + 4 * pair), load_float(sines + 4 * pair)
                if interleaved:
                    one, other = begin + 8 * pair, begin + 8 * pair + 4
                else:
                    one, other = begin + 4 * pair, begin + 4 * (pair + pairs)
                a, b = load_float(x + one), load_float(x + other)
                store_float(out + one, a * cosine - b * sine)
                store_float(out + other, b * cosine + a * sine)
            for column in range(2 * pairs, dim):
                store_float(out + begin + 4 * column, load_float(x + begin + 4 * column))
        pad(out, heads * dim)


@kernel
def gate(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """The activation of one value, times another."""
    width, activation = field(record, tape.WIDTH), field(record, tape.ACTIVATION)
    for token in range(first, last):
        gate = row_in(header, thread, field(record, tape.X), token, small)
        up = row_in(header, thread, field(record, tape.OTHER), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        for column in range(0, width, 16):
            value = activated(load(gate + 4 * column), activation)
            store(out + 4 * column, value * load(up + 4 * column))


@kernel
def part(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """Some columns of each group, side by side."""
    columns, groups = field(record, tape.PART_COLUMNS), field(record, tape.GROUPS)
    step, start = 4 * field(record, tape.GROUP_COLUMNS), 4 * field(record, tape.START)
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), token, small) + start
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        for group in range(groups):
            copy_floats(out + 4 * group * columns, x + group * step, columns)
        pad(out, groups * columns)


@kernel
def add(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """The sum of two values."""
    width = field(record, tape.WIDTH)
    for token in range(first, last):
        a = row_in(header, thread, field(record, tape.X), token, small)
        b = row_in(header, thread, field(record, tape.OTHER), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        for column in range(0, width, 16):
            store(out + 4 * column, load(a + 4 * column) + load(b + 4 * column))


@kernel
def add_table(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """A value and the entry that a table has for its row."""
    width, table = field(record, tape.WIDTH), field(record, tape.OTHER)
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        entry = table + 4 * width * token
        for column in range(0, width, 16):
            store(out + 4 * column, load(x + 4 * column) + load(entry + 4 * column))


@kernel
def activate(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """The activation of a value."""
    width, activation = field(record, tape.WIDTH), field(record, tape.ACTIVATION)
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        for column in range(0, width, 16):
            store(out + 4 * column, activated(load(x + 4 * column), activation))
        pad(out, width)


@kernel
def layer_norm(header: int, record: int, thread: int, first: int, last: int, small: int) -> None:
    """A row less its mean over its standard deviation, times the weight, plus the bias."""
    weight, bias = field(record, tape.NORM_WEIGHT), field(record, tape.NORM_BIAS)
    width, eps = field(record, tape.NORM_WIDTH), float_of_bits(field(record, tape.NORM_EPS))
    whole = width // 16 * 16
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), token, small)
        out = row_in(header, thread, field(record, tape.OUT), token, small)
        total = splat(float32(0.0))
        for column in range(0, width, 16):
            total = total + load(x + 4 * column)
        mean = sum_lanes(total) / float32(width)
        squares = splat(float32(0.0))
        for column in range(0, whole, 16):
            centred = load(x + 4 * column) - splat(mean)
            squares = fma(centred, centred, squares)
        variance = sum_lanes(squares)
        for column in range(whole, width):
            rest = load_float(x + 4 * column) - mean
            variance += rest * rest
        scale = splat(float32(1.0) / square_root_of(variance / float32(width) + eps))
        for column in range(0, width, 16):
            centred = (load(x + 4 * column) - splat(mean)) * scale
            # Past the width both weight and bias are zero.
            value = fma(centred, load(weight + 4 * column), load(bias + 4 * column))
            store(out + 4 * column, value)
