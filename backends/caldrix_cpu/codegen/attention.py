"""Attention over a KV cache, for every family.

A row's keys lie in tiles of 16 positions, ``[kv_heads][positions / 16][dim][16]``, so that a
query's scores come from the same tile kernel as a projection; its values lie as
``[kv_heads][positions][dim]``, where 16 dimensions are a tile and the positions its columns. Heads
are padded with zeros to 16 dimensions. A cache is a ring: position ``p`` has place ``p % ring``.

The heads that share a key/value head, and the tokens of a block, are a tile's "tokens": a key is
read once for all of them.

Positions are taken in segments of 128, counted from position 0. Each segment gives, for a query,
its largest score, its sum of exponentials and its sum of weighted values; the segments are then
combined in order. So a query's result does not depend on which other tokens are computed with it,
and one token's segments can be divided among threads.
"""

from __future__ import annotations

from typing import Any

from numba import float32, int32

from caldrix_cpu import tape
from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.activations import filled_group
from caldrix_cpu.codegen.float_tile import column_tile
from caldrix_cpu.codegen.functions import exponential, exponential_of
from caldrix_cpu.codegen.groups import by_group
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    Ints,
    add_ints,
    choose,
    fetch_and_increment,
    float_of_bits,
    fma,
    lane_numbers,
    larger,
    largest_lane,
    less,
    load,
    load_float,
    load_int,
    splat,
    splat_int,
    store,
    store_float,
    store_half,
    store_halves,
    sum_lanes,
)
from caldrix_cpu.codegen.team import barrier
from caldrix_cpu.codegen.values import field, row_of, thread_scratch

_LOWEST = -3.0e38
_SEGMENT = tape.SEGMENT
_SCORE_STRIDE = 4 * _SEGMENT
_RECORD_TAIL = tape.SEGMENT_TAIL


@kernel
def _combine(records: int, segments: int, record_bytes: int, dim: int, out: int) -> None:
    """A query's segments into its ``dim`` outputs."""
    tail = record_bytes - 4 * _RECORD_TAIL
    largest = float32(_LOWEST)
    for segment in range(segments):
        largest = max(largest, load_float(records + segment * record_bytes + tail))
    total = float32(0.0)
    for segment in range(segments):
        record = records + segment * record_bytes
        factor = exponential_of(load_float(record + tail) - largest)
        # The factor replaces the largest score, which nothing reads any more.
        store_float(record + tail, factor)
        total += load_float(record + tail + 4) * factor
    inverse = float32(1.0) / total
    for column in range(0, dim, 16):
        value = splat(float32(0.0))
        for segment in range(segments):
            record = records + segment * record_bytes
            value = fma(load(record + 4 * column), splat(load_float(record + tail)), value)
        value = value * splat(inverse)
        if column + 16 <= dim:
            store(out + 4 * column, value)
        else:
            # A head whose size is no multiple of 16 ends within the vector.
            store(records, value)
            for rest in range(dim - column):
                store_float(out + 4 * (column + rest), load_float(records + 4 * rest))


@kernel
def softmax(scores: int, begin: int, end: int, first: int, last: int) -> tuple[float, float]:
    """Turns scores of positions ``begin`` to ``end`` into exponentials, in place.

    Those outside ``first`` to ``last`` are hidden: theirs are 0. Returns the largest score and the
    sum. ``begin`` is a multiple of 16.
    """
    lowest = splat(float32(_LOWEST))
    before, after = splat_int(int32(first - 1)), splat_int(int32(last + 1))
    numbers = lane_numbers()
    most = lowest
    for position in range(begin, end, 16):
        place = scores + 4 * (position - begin)
        here = numbers_from(numbers, position)
        value = choose(less(here, after), choose(less(before, here), load(place), lowest), lowest)
        store(place, value)
        most = larger(most, value)
    largest = largest_lane(most)
    total = splat(float32(0.0))
    zero = splat(float32(0.0))
    for position in range(begin, end, 16):
        place = scores + 4 * (position - begin)
        here = numbers_from(numbers, position)
        value = exponential(load(place) - splat(largest))
        value = choose(less(here, after), choose(less(before, here), value, zero), zero)
        store(place, value)
        total = total + value
    return largest, sum_lanes(total)


@kernel
def numbers_from(numbers: Ints, position: int) -> Ints:
    """Lane numbers counted from a position."""
    return add_ints(numbers, splat_int(int32(position)))


def make_attend(value_bytes: int) -> Any:
    """``attend(header, record, thread)`` over caches of float16 (2 bytes) or float32 (4)."""
    most = machine.TARGET.group
    tile = by_group(lambda tokens: column_tile(value_bytes, tokens))

    @kernel
    def remember(
        key: int, value: int, keys: int, values: int, place: int, dim: int, padded: int
    ) -> None:
        """One token's key and value of one head, into their places in the ring."""
        target = keys + ((place >> 4) * padded * 16 + (place & 15)) * value_bytes
        for index in range(dim):
            number = load_float(key + 4 * index)
            if value_bytes == 2:
                store_half(target + index * 32, number)
            else:
                store_float(target + index * 64, number)
        target = values + place * padded * value_bytes
        for index in range(0, dim - 15, 16):
            if value_bytes == 2:
                store_halves(target + 2 * index, load(value + 4 * index))
            else:
                store(target + 4 * index, load(value + 4 * index))
        for index in range(dim // 16 * 16, dim):
            if value_bytes == 2:
                store_half(target + 2 * index, load_float(value + 4 * index))
            else:
                store_float(target + 4 * index, load_float(value + 4 * index))

    @kernel
    def gather(
        header: int,
        record: int,
        thread: int,
        token: int,
        kv_head: int,
        first: int,
        count: int,
        group: int,
        queries: int,
    ) -> None:
        """Scaled queries ``first`` and on of a block, as ``[dim][group]``; the rest zero.

        A block's queries are its tokens' heads of one key/value head, token by token.
        """
        dim, padded = field(record, tape.HEAD_DIM), field(record, tape.PADDED_DIM)
        shared_by = field(record, tape.HEADS) // field(record, tape.KV_HEADS)
        scale = float_of_bits(field(record, tape.SCALE))
        for lane in range(group):
            query = first + lane
            place = queries + 4 * lane
            if lane < count:
                row = row_of(header, thread, field(record, tape.X), token + query // shared_by)
                head = kv_head * shared_by + query % shared_by
                source = row + 4 * head * dim
                for index in range(dim):
                    store_float(place + 4 * index * group, load_float(source + 4 * index) * scale)
                for index in range(dim, padded):
                    store_float(place + 4 * index * group, float32(0.0))
            else:
                for index in range(padded):
                    store_float(place + 4 * index * group, float32(0.0))

    @kernel
    def segment_of(
        record: int,
        segment: int,
        queries: int,
        group: int,
        first: int,
        count: int,
        start: int,
        keys: int,
        values: int,
        scores: int,
        sums: int,
    ) -> None:
        """One segment for a group of queries: exponentials' sums to ``sums``.

        ``start`` is the position of the block's first token; ``sums`` has a record for each query.
        """
        padded, window = field(record, tape.PADDED_DIM), field(record, tape.WINDOW)
        shared_by = field(record, tape.HEADS) // field(record, tape.KV_HEADS)
        record_bytes = 4 * (padded + _RECORD_TAIL)
        earliest = max(start + first // shared_by - window + 1, 0)
        latest = start + (first + count - 1) // shared_by
        begin = max(segment * _SEGMENT, earliest // 16 * 16)
        end = min(segment * _SEGMENT + _SEGMENT, latest + 1)
        place = begin % field(record, tape.RING)
        key = keys + place * padded * value_bytes
        for position in range(begin, end, 16):
            tile(
                group, key, 16 * value_bytes, queries, 4 * group, 4, padded,
                scores + 4 * (position - begin), _SCORE_STRIDE,
            )  # fmt: skip
            key += 16 * padded * value_bytes
        for lane in range(group):
            last = start + (first + lane) // shared_by if lane < count else -1
            largest, total = softmax(
                scores + lane * _SCORE_STRIDE, begin, end, max(last - window + 1, 0), last
            )
            target = sums + lane * record_bytes + 4 * padded
            store_float(target, largest)
            store_float(target + 4, total)
        value = values + place * padded * value_bytes
        for column in range(0, padded, 16):
            tile(
                group, value + column * value_bytes, padded * value_bytes,
                scores, 4, _SCORE_STRIDE, end - begin,
                sums + 4 * column, record_bytes,
            )  # fmt: skip

    @kernel
    def copy_record(target: int, source: int, record_bytes: int) -> None:
        for offset in range(0, record_bytes, 64):
            store(target + offset, load(source + offset))

    @kernel
    def block(header: int, record: int, thread: int, unit: int, kv_head: int) -> None:
        """A run of tokens of one row, all its segments, one after another."""
        padded, window = field(record, tape.PADDED_DIM), field(record, tape.WINDOW)
        dim = field(record, tape.HEAD_DIM)
        shared_by = field(record, tape.HEADS) // field(record, tape.KV_HEADS)
        record_bytes = 4 * (padded + _RECORD_TAIL)
        token, start = field(unit, tape.UNIT_TOKEN), field(unit, tape.UNIT_START)
        row = field(unit, tape.UNIT_ROW) * field(record, tape.ROW_BYTES)
        head = kv_head * field(record, tape.HEAD_BYTES)
        keys = field(record, tape.KEY_CACHE) + row + head
        values = field(record, tape.VALUE_CACHE) + row + head
        scratch = thread_scratch(header, thread)
        scores = scratch + tape.ROOM
        queries = scores + most * _SCORE_STRIDE
        sums = queries + 4 * most * padded
        records = sums + most * record_bytes
        all_queries = field(unit, tape.UNIT_TOKENS) * shared_by
        most_segments = load_int(header + 8 * tape.SEGMENTS)
        first = 0
        while first < all_queries:
            count = min(all_queries - first, most)
            group = filled_group(count, most)
            gather(header, record, thread, token, kv_head, first, count, group, queries)
            earliest = max(start + first // shared_by - window + 1, 0) // _SEGMENT
            latest = (start + (first + count - 1) // shared_by) // _SEGMENT
            for segment in range(earliest, latest + 1):
                segment_of(
                    record, segment, queries, group, first, count, start, keys, values, scores, sums
                )
                for lane in range(count):
                    number = lane * most_segments + segment - earliest
                    copy_record(
                        records + number * record_bytes, sums + lane * record_bytes, record_bytes
                    )
            for lane in range(count):
                query = first + lane
                out = row_of(header, thread, field(record, tape.OUT), token + query // shared_by)
                out += 4 * dim * (kv_head * shared_by + query % shared_by)
                _combine(
                    records + lane * most_segments * record_bytes,
                    latest + 1 - earliest, record_bytes, dim, out,
                )  # fmt: skip
            first += count

    @kernel
    def remember_token(header: int, record: int, thread: int, token: int, kv_head: int) -> None:
        dim, padded = field(record, tape.HEAD_DIM), field(record, tape.PADDED_DIM)
        position = field(load_int(header + 8 * tape.POSITIONS), token)
        row = field(load_int(header + 8 * tape.ROWS), token) * field(record, tape.ROW_BYTES)
        head = kv_head * field(record, tape.HEAD_BYTES)
        key = row_of(header, thread, field(record, tape.KEYS), token) + 4 * dim * kv_head
        value = row_of(header, thread, field(record, tape.VALUES), token) + 4 * dim * kv_head
        remember(
            key, value,
            field(record, tape.KEY_CACHE) + row + head,
            field(record, tape.VALUE_CACHE) + row + head,
            position % field(record, tape.RING), dim, padded,
        )  # fmt: skip

    @kernel
    def one_segment(
        header: int, record: int, thread: int, token: int, kv_head: int, segment: int, partials: int
    ) -> None:
        """One segment of one token, whose records go to ``partials``."""
        padded, window = field(record, tape.PADDED_DIM), field(record, tape.WINDOW)
        heads = field(record, tape.HEADS)
        shared_by = heads // field(record, tape.KV_HEADS)
        record_bytes = 4 * (padded + _RECORD_TAIL)
        position = field(load_int(header + 8 * tape.POSITIONS), token)
        earliest = max(position - window + 1, 0) // _SEGMENT
        if segment < earliest or segment > position // _SEGMENT:
            return
        if segment == position // _SEGMENT:
            # Nobody else reads this token's place in this head.
            remember_token(header, record, thread, token, kv_head)
        row = field(load_int(header + 8 * tape.ROWS), token) * field(record, tape.ROW_BYTES)
        head = kv_head * field(record, tape.HEAD_BYTES)
        scratch = thread_scratch(header, thread)
        scores = scratch + tape.ROOM
        queries = scores + most * _SCORE_STRIDE
        sums = queries + 4 * most * padded
        most_segments = load_int(header + 8 * tape.SEGMENTS)
        first = 0
        while first < shared_by:
            count = min(shared_by - first, most)
            group = filled_group(count, most)
            gather(header, record, thread, token, kv_head, first, count, group, queries)
            segment_of(
                record, segment, queries, group, first, count, position,
                field(record, tape.KEY_CACHE) + row + head,
                field(record, tape.VALUE_CACHE) + row + head,
                scores, sums,
            )  # fmt: skip
            for lane in range(count):
                number = token * heads + kv_head * shared_by + first + lane
                number = number * most_segments + segment - earliest
                copy_record(
                    partials + number * record_bytes, sums + lane * record_bytes, record_bytes
                )
            first += count

    @kernel
    def pad_row(header: int, record: int, thread: int, token: int) -> None:
        """Zeros from the last head to the end of the row's last vector."""
        width = field(record, tape.HEADS) * field(record, tape.HEAD_DIM)
        out = row_of(header, thread, field(record, tape.OUT), token)
        for column in range(width, (width + 15) // 16 * 16):
            store_float(out + 4 * column, float32(0.0))

    @kernel
    def attend_single(header: int, record: int, thread: int, counter: int) -> None:
        """Every row has one token: segments are divided among the threads."""
        tokens, threads = load_int(header + 8 * tape.TOKENS), load_int(header + 8 * tape.THREADS)
        heads, kv_heads = field(record, tape.HEADS), field(record, tape.KV_HEADS)
        dim, window = field(record, tape.HEAD_DIM), field(record, tape.WINDOW)
        record_bytes = 4 * (field(record, tape.PADDED_DIM) + _RECORD_TAIL)
        segments = load_int(header + 8 * tape.SEGMENTS)
        partials = load_int(header + 8 * tape.PARTIALS)
        units = tokens * kv_heads * segments
        while True:
            unit = fetch_and_increment(counter)
            if unit >= units:
                break
            one_segment(
                header, record, thread,
                unit // segments // kv_heads, unit // segments % kv_heads, unit % segments,
                partials,
            )  # fmt: skip
        barrier(header, threads)
        for number in range(thread, tokens * heads, threads):
            token, head = number // heads, number % heads
            position = field(load_int(header + 8 * tape.POSITIONS), token)
            count = position // _SEGMENT + 1 - max(position - window + 1, 0) // _SEGMENT
            out = row_of(header, thread, field(record, tape.OUT), token) + 4 * dim * head
            _combine(partials + number * segments * record_bytes, count, record_bytes, dim, out)
            if head == heads - 1:
                pad_row(header, record, thread, token)

    @kernel
    def attend_blocks(header: int, record: int, thread: int, counter: int) -> None:
        """Blocks of tokens are divided among the threads, once all keys and values are there."""
        tokens, threads = load_int(header + 8 * tape.TOKENS), load_int(header + 8 * tape.THREADS)
        kv_heads = field(record, tape.KV_HEADS)
        for token in range(tokens * thread // threads, tokens * (thread + 1) // threads):
            for kv_head in range(kv_heads):
                remember_token(header, record, thread, token, kv_head)
            pad_row(header, record, thread, token)
        barrier(header, threads)
        units, table = load_int(header + 8 * tape.UNIT_COUNT), load_int(header + 8 * tape.UNITS)
        while True:
            number = fetch_and_increment(counter)
            if number >= units * kv_heads:
                break
            # The last blocks see most, so they come first.
            unit = table + (units - 1 - number // kv_heads) * 8 * tape.UNIT_SIZE
            block(header, record, thread, unit, number % kv_heads)

    @kernel
    def attend(header: int, record: int, thread: int, counter: int) -> None:
        if load_int(header + 8 * tape.LONGEST_SLICE) == 1:
            attend_single(header, record, thread, counter)
        else:
            attend_blocks(header, record, thread, counter)

    return attend
