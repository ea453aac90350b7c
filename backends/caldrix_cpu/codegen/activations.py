"""Activations as the tile kernels read them: groups of tokens, interleaved.

Tokens are cut into groups of `machine.TARGET.group`; the last is filled up to a power of two, so
that four kinds of tile serve every number of tokens. Within a group the tokens' values for the
same columns lie side by side. A token takes as many bytes as its columns do, so group after group
begins at ``token * bytes``:

- ``F32``: ``[columns][tokens]`` float32;
- ``BF16``: ``[columns / 2][tokens][2]`` bfloat16;
- ``Q8``: ``[columns / 4][tokens][4]`` int8, and beside it, for each block of 32 columns,
  ``[blocks][tokens]`` float32 scales, ``[blocks][tokens]`` float32 products of scale and sum, and
  ``[blocks][2][tokens]`` such products for halves of a block. The rounding is llama.cpp's for
  Q8_0: the scale is a 127th of the block's largest magnitude.
"""

from __future__ import annotations

from numba import float32

from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    Floats,
    copy_word,
    fma,
    largest_magnitude,
    load,
    load_float,
    round_to_even,
    splat,
    square_root_of,
    store_bfloats,
    store_bytes,
    store_float,
    sum_ints,
    sum_lanes,
    to_ints,
)

_BLOCK = 32
_LEVELS = 127.0


@kernel
def filled_group(tokens: int, most: int) -> int:
    """Tokens that a group of the next ``tokens`` is filled up to: 1, 2, 4 or ``most``."""
    if tokens >= most or tokens > 4:
        return most
    if tokens > 2:
        return 4
    return tokens


@kernel
def root_mean_square(x: int, width: int, eps: float) -> float:
    """``1 / sqrt(mean(x ** 2) + eps)`` of ``width`` values, padded with zeros to 16."""
    total = splat(float32(0.0))
    for column in range(0, width, 16):
        value = load(x + 4 * column)
        total = fma(value, value, total)
    mean = sum_lanes(total) / float32(width)
    return float32(1.0) / square_root_of(mean + eps)


@kernel
def _value(x: int, weight: int, column: int, scale: float) -> Floats:
    """Sixteen values, normalised where there is a weight."""
    value = load(x + 4 * column)
    if weight != 0:
        value = value * splat(scale) * load(weight + 4 * column)
    return value


@kernel
def pack_q8(
    x: int,
    weight: int,
    scale: float,
    columns: int,
    group: int,
    lane: int,
    quants: int,
    scales: int,
    sums: int,
    halves: int,
    room: int,
) -> None:
    """One token into place ``lane`` of its group; the pointers are the group's.

    ``room`` is 32 bytes of this thread's own.
    """
    for block in range(columns // _BLOCK):
        low = _value(x, weight, block * _BLOCK, scale)
        high = _value(x, weight, block * _BLOCK + 16, scale)
        # Infinite or NaN, it makes the scale so, and with it all that the block is part of.
        largest = largest_magnitude(low, high)
        step = largest * float32(1.0 / _LEVELS)
        inverse = float32(_LEVELS) / largest if largest > float32(0.0) else float32(0.0)
        low_ints = to_ints(round_to_even(low * splat(inverse)))
        high_ints = to_ints(round_to_even(high * splat(inverse)))
        if group == 1:
            store_bytes(quants + block * _BLOCK, low_ints)
            store_bytes(quants + block * _BLOCK + 16, high_ints)
        else:
            store_bytes(room, low_ints)
            store_bytes(room + 16, high_ints)
            target = quants + (block * 8 * group + lane) * 4
            for word in range(8):
                copy_word(target + word * group * 4, room + word * 4)
        low_sum = float32(sum_ints(low_ints))
        high_sum = float32(sum_ints(high_ints))
        place = 4 * (block * group + lane)
        store_float(scales + place, step)
        store_float(sums + place, step * (low_sum + high_sum))
        place = 4 * (2 * block * group + lane)
        store_float(halves + place, step * low_sum)
        store_float(halves + place + 4 * group, step * high_sum)


@kernel
def pack_f32(
    x: int, weight: int, scale: float, columns: int, group: int, lane: int, out: int
) -> None:
    """One token into place ``lane`` of its group at ``out``."""
    for column in range(columns):
        value = load_float(x + 4 * column)
        if weight != 0:
            value = value * scale * load_float(weight + 4 * column)
        store_float(out + 4 * (column * group + lane), value)


@kernel
def pack_bf16(
    x: int,
    weight: int,
    scale: float,
    columns: int,
    group: int,
    lane: int,
    out: int,
    room: int,
) -> None:
    """One token into place ``lane`` of its group at ``out``. ``room`` is as for `pack_q8`.

    ``x`` is readable, and zero, to the end of its last vector.
    """
    for column in range(0, columns, 16):
        store_bfloats(room, _value(x, weight, column, scale))
        target = out + 4 * (column // 2 * group + lane)
        for pair in range(min(columns - column, 16) // 2):
            copy_word(target + 4 * pair * group, room + 4 * pair)
