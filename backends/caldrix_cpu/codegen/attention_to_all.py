"""Attention of every row to every row, for encoders.

A head's keys lie in tiles of 16 rows and its values in tiles of 16 dimensions, so that scores and
results come from the same tile kernels as projections: in bfloat16, ``[rows / 16][dim / 2][16][2]``
and ``[dim / 16][rows / 2][16][2]``, or in float32, ``[rows / 16][dim][16]`` and ``[rows][dim]``.
Dimensions and rows are padded with zeros to 16; weights of rows past the last are zero.

Threads lay all keys and values out, meet, and divide heads and groups of queries among themselves.
A group's scores of all keys stay in its thread's scratch: there is no need to take the keys in
segments, since every query sees the same ones. In bfloat16 queries, keys, values and the
exponentials (at most 1) are rounded; scores and sums are float32.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from caldrix_cpu import tape
from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.activations import filled_group, pack_bf16
from caldrix_cpu.codegen.attention import softmax
from caldrix_cpu.codegen.float_tile import column_tile, pair_tile
from caldrix_cpu.codegen.groups import by_group
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    fetch_and_increment,
    float_of_bits,
    load,
    load_float,
    load_int,
    splat,
    store,
    store_bfloat_pairs,
    store_float,
)
from caldrix_cpu.codegen.team import barrier
from caldrix_cpu.codegen.values import field, row_of, thread_scratch

_QUERIES = 64
"""Queries that a thread takes at a time: enough to even out, and a head's keys stay in its cache
meanwhile."""


@kernel
def _rounded_up(value: int) -> int:
    return (value + 15) // 16 * 16


@kernel
def copy_head(source: int, scale: float, dim: int, padded: int, out: int) -> None:
    """``dim`` scaled floats, with zeros up to ``padded``."""
    for column in range(dim):
        store_float(out + 4 * column, load_float(source + 4 * column) * scale)
    for column in range(dim, padded):
        store_float(out + 4 * column, float32(0.0))


def make_attend_all(*, exact: bool) -> Any:
    """``attend(header, record, thread, counter)``, in float32 where ``exact``, else bfloat16."""
    most = machine.TARGET.group
    if exact:
        tile = by_group(lambda tokens: column_tile(4, tokens))
    else:
        tile = by_group(lambda tokens: pair_tile(tokens, compressed=False, exact=False))

    @kernel
    def lay_out_rows(header: int, record: int, thread: int, first: int, head: int) -> None:
        """The keys and values of 16 rows from ``first`` on, of one head."""
        rows = load_int(header + 8 * tape.TOKENS)
        dim, padded = field(record, tape.HEAD_DIM), field(record, tape.PADDED_DIM)
        begin = head * field(record, tape.HEAD_BYTES)
        keys, values = (
            field(record, tape.KEY_CACHE) + begin,
            field(record, tape.VALUE_CACHE) + begin,
        )
        room = thread_scratch(header, thread)
        one = room + tape.ROOM
        other = one + 4 * padded
        for place in range(0, 16, 2):
            for half in range(2):
                row = first + place + half
                target = one + 4 * padded * half
                if row < rows:
                    key = row_of(header, thread, field(record, tape.KEYS), row) + 4 * dim * head
                    copy_head(key, float32(1.0), dim, padded, target)
                else:
                    copy_head(one, float32(0.0), 0, padded, target)
                if exact:
                    tile_of_keys = keys + first * 4 * padded + 4 * (place + half)
                    for column in range(padded):
                        store_float(tile_of_keys + 64 * column, load_float(target + 4 * column))
                else:
                    pack_bf16(
                        target, 0, float32(1.0), padded, 16, place + half,
                        keys + first * 2 * padded, room,
                    )  # fmt: skip
            for half in range(2):
                row = first + place + half
                target = one + 4 * padded * half
                if row < rows:
                    value = row_of(header, thread, field(record, tape.VALUES), row) + 4 * dim * head
                    copy_head(value, float32(1.0), dim, padded, target)
                else:
                    copy_head(one, float32(0.0), 0, padded, target)
            if exact:
                place_of_values = values + (first + place) * 4 * padded
                for column in range(0, 2 * padded, 16):
                    store(place_of_values + 4 * column, load(one + 4 * column))
            else:
                pair = (first + place) // 2
                for column in range(0, padded, 16):
                    tile_bytes = 2 * 16 * _rounded_up(rows)
                    place_of_values = values + column // 16 * tile_bytes + 64 * pair
                    even, odd = load(one + 4 * column), load(other + 4 * column)
                    store_bfloat_pairs(place_of_values, even, odd)

    @kernel
    def gather(
        header: int, record: int, thread: int, head: int, first: int, count: int, group: int,
        queries: int, one: int,
    ) -> None:  # fmt: skip
        """Scaled queries ``first`` and on as a tile's tokens; those past ``count`` zero."""
        dim, padded = field(record, tape.HEAD_DIM), field(record, tape.PADDED_DIM)
        scale = float_of_bits(field(record, tape.SCALE))
        for lane in range(group):
            if lane < count:
                row = row_of(header, thread, field(record, tape.X), first + lane)
                copy_head(row + 4 * dim * head, scale, dim, padded, one)
            else:
                copy_head(one, scale, 0, padded, one)
            if exact:
                for column in range(padded):
                    place = queries + 4 * (column * group + lane)
                    store_float(place, load_float(one + 4 * column))
            else:
                room = thread_scratch(header, thread)
                pack_bf16(one, 0, float32(1.0), padded, group, lane, queries, room)

    @kernel
    def score(group: int, keys: int, queries: int, rows: int, padded: int, scores: int) -> None:
        """Products of a group's queries with all keys: ``[group][rows]``."""
        stride = 4 * _rounded_up(rows)
        for row in range(0, rows, 16):
            if exact:
                tile(
                    group, keys + row * 4 * padded, 64, queries, 4 * group, 4, padded,
                    scores + 4 * row, stride,
                )  # fmt: skip
            else:
                tile(
                    group, 0, keys + row * 2 * padded, queries, padded // 2,
                    scores + 4 * row, stride,
                )  # fmt: skip

    @kernel
    def weigh(
        group: int, values: int, weights: int, packed: int, rows: int, padded: int, sums: int,
        room: int,
    ) -> None:  # fmt: skip
        """Sums of all values by a group's weights: ``[group][padded]``."""
        all_rows = _rounded_up(rows)
        if not exact:
            for lane in range(group):
                pack_bf16(
                    weights + 4 * all_rows * lane, 0, float32(1.0), all_rows, group, lane,
                    packed, room,
                )  # fmt: skip
        for column in range(0, padded, 16):
            out = sums + 4 * column
            if exact:
                tile(
                    group, values + 4 * column, 4 * padded, weights, 4, 4 * all_rows, all_rows,
                    out, 4 * padded,
                )  # fmt: skip
            else:
                tile(
                    group, 0, values + column * 2 * all_rows, packed, all_rows // 2,
                    out, 4 * padded,
                )  # fmt: skip

    @kernel
    def attend_group(
        header: int, record: int, thread: int, head: int, first: int, count: int
    ) -> None:
        """The results of a group of queries of one head."""
        rows = load_int(header + 8 * tape.TOKENS)
        dim, padded = field(record, tape.HEAD_DIM), field(record, tape.PADDED_DIM)
        begin = head * field(record, tape.HEAD_BYTES)
        keys, values = (
            field(record, tape.KEY_CACHE) + begin,
            field(record, tape.VALUE_CACHE) + begin,
        )
        group = filled_group(count, most)
        all_rows = _rounded_up(rows)
        room = thread_scratch(header, thread)
        one = room + tape.ROOM
        queries = one + 4 * padded
        sums = queries + 4 * most * padded
        scores = sums + 4 * most * padded
        packed = scores + 4 * most * all_rows
        gather(header, record, thread, head, first, count, group, queries, one)
        score(group, keys, queries, rows, padded, scores)
        for lane in range(group):
            _, total = softmax(scores + 4 * all_rows * lane, 0, rows, 0, rows - 1)
            # A query's own place is free now that its scores are there.
            store_float(queries + 4 * lane, float32(1.0) / total)
        weigh(group, values, scores, packed, rows, padded, sums, room)
        for lane in range(count):
            inverse = load_float(queries + 4 * lane)
            out = row_of(header, thread, field(record, tape.OUT), first + lane) + 4 * dim * head
            result = sums + 4 * padded * lane
            for column in range(0, dim // 16 * 16, 16):
                store(out + 4 * column, load(result + 4 * column) * splat(inverse))
            for column in range(dim // 16 * 16, dim):
                store_float(out + 4 * column, load_float(result + 4 * column) * inverse)

    @kernel
    def attend(header: int, record: int, thread: int, counter: int) -> None:
        rows, threads = load_int(header + 8 * tape.TOKENS), load_int(header + 8 * tape.THREADS)
        heads = field(record, tape.HEADS)
        tiles = (rows + 15) // 16
        for number in range(tiles * thread // threads, tiles * (thread + 1) // threads):
            for head in range(heads):
                lay_out_rows(header, record, thread, 16 * number, head)
            width = heads * field(record, tape.HEAD_DIM)
            for row in range(16 * number, min(16 * number + 16, rows)):
                out = row_of(header, thread, field(record, tape.OUT), row)
                for column in range(width, _rounded_up(width)):
                    store_float(out + 4 * column, float32(0.0))
        barrier(header, threads)
        blocks = (rows + _QUERIES - 1) // _QUERIES
        while True:
            number = fetch_and_increment(counter)
            if number >= heads * blocks:
                break
            head, begin = number // blocks, number % blocks * _QUERIES
            end = min(begin + _QUERIES, rows)
            for first in range(begin, end, most):
                attend_group(header, record, thread, head, first, min(most, end - first))

    return attend
