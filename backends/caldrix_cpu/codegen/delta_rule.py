"""The gated delta rule: a head's tokens one after another, heads and slices among the threads.

With a token's decay ``a``, strength ``b`` and key of length one ``k``, its state ``S`` becomes
``a S + outer(k, d)`` for ``d = b (v - a S.T k)``. What the token then reads of it is
``a S.T q + (k . q) d``: sums over the state as the token before left it. So one pass over the
state changes it for one token and sums up for the next, and every token's result is the same
however its row was sliced.

A chunk of tokens passes while a few tiles of the state (`caldrix_cpu.states`) stay in the
first-level cache.
"""

from __future__ import annotations

from typing import Any

from numba import float32

from caldrix_cpu import tape
from caldrix_cpu.codegen.functions import LEAST, exponential_of, sigmoid, softplus
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    fetch_and_increment,
    float_of_bits,
    fma,
    largest_lane,
    load,
    load_float,
    load_int,
    splat,
    square_root_of,
    store,
    store_float,
    sum_lanes,
)
from caldrix_cpu.codegen.state_tile import most_tiles, state_pass
from caldrix_cpu.codegen.values import (
    clear,
    copy_floats,
    field,
    pad,
    rounded_up,
    row_of,
    thread_scratch,
)

_CHUNK = tape.DELTA_TOKENS
_FACTOR_BYTES = 4 * tape.DELTA_FACTORS
_SUMMED = 3 * 16
"""Floats of a tile's sums: of key and of query, and what is added to it."""


@kernel
def _decay(rate: float, x: float) -> float:
    """``exp(-rate * softplus(x))``; 0 where that is no normal number; NaN stays NaN."""
    log = -(rate * largest_lane(softplus(splat(x))))
    if log < float32(LEAST):
        return float32(0.0)
    if log != log:
        return log
    return exponential_of(log)


@kernel
def _strength(x: float) -> float:
    """``sigmoid(x)`` of one number; NaN stays NaN."""
    return largest_lane(sigmoid(splat(x)))


@kernel
def _gathered(source: int, dim: int, target: int, eps: float) -> float:
    """Copies a head's values, and zeros to whole vectors: ``1 / sqrt(sum of squares + eps)``."""
    copy_floats(target, source, dim)
    pad(target, dim)
    total = splat(float32(0.0))
    for column in range(0, dim, 16):
        value = load(target + 4 * column)
        total = fma(value, value, total)
    return float32(1.0) / square_root_of(sum_lanes(total) + eps)


@kernel
def _make_ready(
    header: int, record: int, thread: int, token: int, head: int, key: int, query: int, factors: int
) -> None:
    """A token's key and query of one head, of length one and scaled, and its factors.

    The factors are its decay, its strength and the product of key and query.
    """
    dim, key_heads = field(record, tape.KEY_DIM), field(record, tape.KEY_HEADS)
    if field(record, tape.TILED):
        key_head = head % key_heads
    else:
        key_head = head // (field(record, tape.HEADS) // key_heads)
    begin, eps = 4 * dim * key_head, float_of_bits(field(record, tape.UNIT_EPS))
    source = row_of(header, thread, field(record, tape.KEYS), token) + begin
    key_scale = splat(_gathered(source, dim, key, eps))
    source = row_of(header, thread, field(record, tape.X), token) + begin
    query_scale = _gathered(source, dim, query, eps)
    query_scale = splat(query_scale * float_of_bits(field(record, tape.SCALE)))
    product = splat(float32(0.0))
    for column in range(0, dim, 16):
        one = load(key + 4 * column) * key_scale
        other = load(query + 4 * column) * query_scale
        store(key + 4 * column, one)
        store(query + 4 * column, other)
        product = fma(one, other, product)
    decay = load_float(row_of(header, thread, field(record, tape.DECAY), token) + 4 * head)
    decay += load_float(field(record, tape.RATE_BIASES) + 4 * head)
    strength = load_float(row_of(header, thread, field(record, tape.STRENGTH), token) + 4 * head)
    store_float(factors, _decay(load_float(field(record, tape.RATES) + 4 * head), decay))
    store_float(factors + 4, _strength(strength))
    store_float(factors + 8, sum_lanes(product))


@kernel
def _finish(factors: int, sums: int, value: int, added: int, out: int, count: int) -> None:
    """A token's result in one tile, of which ``count`` columns are values, and what it adds.

    ``sums`` are those of key and of query.
    """
    decay = splat(load_float(factors))
    store(added, splat(float32(0.0)))
    copy_floats(added, value, count)
    difference = load(added) - decay * load(sums)
    difference = splat(load_float(factors + 4)) * difference
    store(added, difference)
    product = splat(load_float(factors + 8))
    result = fma(product, difference, decay * load(sums + 64))
    if count == 16:
        store(out, result)
    else:
        store(sums, result)
        copy_floats(out, sums, count)


def make_delta_rule() -> Any:
    """``delta_rule(header, record, thread, counter)``."""
    most = most_tiles()
    assert _SUMMED * most <= tape.DELTA_SUMS, f"no room for the sums of {most} tiles"
    read = state_pass(changes=False, sums_up=True)
    change = state_pass(changes=True, sums_up=False)
    change_and_read = state_pass(changes=True, sums_up=True)

    @kernel
    def through_tiles(
        header: int,
        record: int,
        thread: int,
        token: int,
        count: int,
        head: int,
        first: int,
        tiles: int,
        state: int,
        ready: int,
    ) -> None:
        """A chunk of ``count`` tokens through ``tiles`` tiles from ``first`` on."""
        dim, value_dim = field(record, tape.KEY_DIM), field(record, tape.VALUE_DIM)
        key_bytes, tile_bytes = 4 * rounded_up(dim, 16), 64 * dim
        state += first * tile_bytes
        keys, queries = ready, ready + _CHUNK * key_bytes
        factors = queries + _CHUNK * key_bytes
        sums = factors + _CHUNK * _FACTOR_BYTES
        added = sums + 128 * most
        begin = 4 * (head * value_dim + 16 * first)
        for index in range(count):
            key, query = keys + index * key_bytes, queries + index * key_bytes
            if index == 0:
                read(tiles, state, tile_bytes, dim, 0, 0, 0, key, query, sums)
            else:
                change_and_read(
                    tiles, state, tile_bytes, dim,
                    factors - _FACTOR_BYTES, key - key_bytes, added, key, query, sums,
                )  # fmt: skip
            value = row_of(header, thread, field(record, tape.VALUES), token + index) + begin
            out = row_of(header, thread, field(record, tape.OUT), token + index) + begin
            for tile in range(tiles):
                _finish(
                    factors, sums + 128 * tile, value + 64 * tile, added + 64 * tile,
                    out + 64 * tile, min(value_dim - 16 * (first + tile), 16),
                )  # fmt: skip
            factors += _FACTOR_BYTES
        key = keys + (count - 1) * key_bytes
        change(tiles, state, tile_bytes, dim, factors - _FACTOR_BYTES, key, added, 0, 0, 0)

    @kernel
    def one_head(header: int, record: int, thread: int, part: int, head: int) -> None:
        """A slice's tokens through one head's state."""
        dim, value_dim = field(record, tape.KEY_DIM), field(record, tape.VALUE_DIM)
        begun, tokens = field(part, tape.UNIT_TOKEN), field(part, tape.UNIT_TOKENS)
        tiles, key_bytes = (value_dim + 15) // 16, 4 * rounded_up(dim, 16)
        head_bytes = tiles * 64 * dim
        state = field(record, tape.STATE) + head * head_bytes
        state += field(part, tape.UNIT_ROW) * field(record, tape.STATE_BYTES)
        if field(part, tape.UNIT_START) == 0:
            clear(state, head_bytes)
        ready = thread_scratch(header, thread) + tape.ROOM
        queries = ready + _CHUNK * key_bytes
        factors = queries + _CHUNK * key_bytes
        for done in range(0, tokens, _CHUNK):
            count = min(tokens - done, _CHUNK)
            for index in range(count):
                _make_ready(
                    header, record, thread, begun + done + index, head,
                    ready + index * key_bytes, queries + index * key_bytes,
                    factors + index * _FACTOR_BYTES,
                )  # fmt: skip
            first = 0
            while first < tiles:
                together = most if tiles - first >= most else 1
                through_tiles(
                    header, record, thread, begun + done, count, head,
                    first, together, state, ready,
                )  # fmt: skip
                first += together

    @kernel
    def delta_rule(header: int, record: int, thread: int, counter: int) -> None:
        heads, slices = field(record, tape.HEADS), load_int(header + 8 * tape.SLICES)
        units = load_int(header + 8 * tape.SLICE_COUNT) * heads
        width = heads * field(record, tape.VALUE_DIM)
        while True:
            unit = fetch_and_increment(counter)
            if unit >= units:
                break
            part, head = slices + unit // heads * 8 * tape.UNIT_SIZE, unit % heads
            one_head(header, record, thread, part, head)
            if head == heads - 1:
                begun = field(part, tape.UNIT_TOKEN)
                for token in range(begun, begun + field(part, tape.UNIT_TOKENS)):
                    pad(row_of(header, thread, field(record, tape.OUT), token), width)

    return delta_rule
