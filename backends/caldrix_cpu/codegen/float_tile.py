"""The tile kernels of float weights: 16 rows against a group of tokens.

Products are summed in two chains, even and odd columns, that are added at the end: two hide the
latency of an addition, and the order is the same for one token as for eight.

The kernel over single columns also serves attention, where a tile's rows are 16 positions (for
scores) or 16 dimensions (for values).
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types

from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.emit import (
    AHEAD,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    Accumulators,
    Emitter,
    vector,
)
from caldrix_cpu.codegen.lanes import instruction
from caldrix_cpu.tiles.layouts import BLOCK, LINE, TILE_ROWS

_CHAINS = 2
_UNROLL = 4
PLAIN_BLOCK = 0xFFFF
"""A compressed block's header, where it is not compressed after all."""
_PAIR_BYTES = 4 * TILE_ROWS
_SHORT_PAIR_BYTES = 2 * TILE_ROWS


def column_tile(value_bytes: int, tokens: int) -> Any:
    """The kernel over columns of float32 (4 bytes) or float16 (2), computing in float32:

    ``tile(weights, weight_step, x, x_step, x_token, columns, out, out_stride)``, all int64 and in
    bytes but for ``columns``. A column's 16 rows begin ``weight_step`` after the last column's;
    a token's value is at ``x + column * x_step + token * x_token``, float32.
    """
    element = F32 if value_bytes == 4 else F16

    @instruction(types.void, *[types.int64] * 8)
    def tile(e: Emitter, *arguments: ir.Value) -> None:
        weights, weight_step, x, x_step, x_token, columns, out, out_stride = arguments
        lanes = machine.TARGET.lanes

        def add_column(sums: Accumulators, first: ir.Value, column: ir.Value, chain: int) -> None:
            place = e.at(weights, e.times(column, weight_step))
            place = e.at(place, e.times(first, value_bytes))
            row = e.load(place, vector(element, lanes), value_bytes)
            if element is F16:
                row = e.from_half(row)
            if element is F32 or chain == 0:
                e.prefetch(e.at(place, AHEAD))
            x_column = e.at(x, e.times(column, x_step))
            for token in range(tokens):
                value = e.load(e.at(x_column, e.times(x_token, token)), F32, 4)
                index = chain * tokens + token
                sums.set(index, e.fma(row, e.splat(value, lanes), sums.get(index)))

        with e.loop(ir.Constant(I64, TILE_ROWS // lanes)) as part:
            first = e.times(part, lanes)
            sums = e.accumulators(vector(F32, lanes), _CHAINS * tokens)
            runs = e.b.lshr(columns, ir.Constant(I64, 2))
            with e.loop(runs) as run:
                for step in range(_UNROLL):
                    add_column(sums, first, e.at(e.times(run, _UNROLL), step), step % _CHAINS)
            begun = e.times(runs, _UNROLL)
            for step in range(_UNROLL - 1):
                column = e.at(begun, step)
                with e.b.if_then(e.b.icmp_signed("<", column, columns)):
                    add_column(sums, first, column, step % _CHAINS)
            _store_sums(e, sums, tokens, e.at(out, e.times(first, 4)), out_stride)

    return tile


def pair_tile(tokens: int, *, compressed: bool, exact: bool) -> Any:
    """The kernel over pairs of bfloat16 columns, plain or compressed:

    ``tile(headers, weights, x, pairs, out, out_stride)``, all int64. With ``exact`` activations
    are float32, ``[columns][tokens]``; else bfloat16 in pairs, ``[pairs][tokens][2]``, and a pair
    is one vdpbf16ps. ``headers`` are a compressed tile's, 16 bits for each block.
    """

    @instruction(types.void, *[types.int64] * 6)
    def tile(e: Emitter, *arguments: ir.Value) -> None:
        headers, weights, x, pairs, out, out_stride = arguments
        lanes = machine.TARGET.lanes
        with e.loop(ir.Constant(I64, TILE_ROWS // lanes)) as part:
            first = e.times(part, lanes)
            sums = e.accumulators(vector(F32, lanes), _CHAINS * tokens)
            kernel = _PairTile(e, tokens, exact, first, sums)
            if compressed:
                kernel.compressed(headers, weights, x, pairs)
            else:
                kernel.plain(weights, x, pairs)
            _store_sums(e, sums, tokens, e.at(out, e.times(first, 4)), out_stride)

    return tile


class _PairTile:
    def __init__(
        self, e: Emitter, tokens: int, exact: bool, first: ir.Value, sums: Accumulators
    ) -> None:
        self.e = e
        self.tokens = tokens
        self.exact = exact
        self.first = first
        self.sums = sums
        self.lanes = machine.TARGET.lanes
        self.x_bytes = (8 if exact else 4) * tokens
        """Of a pair of columns."""

    def plain(self, weights: ir.Value, x: ir.Value, pairs: ir.Value) -> None:
        e = self.e
        with e.loop(e.b.lshr(pairs, ir.Constant(I64, 1))) as run:
            place = e.at(weights, e.times(run, 2 * _PAIR_BYTES))
            x_place = e.at(x, e.times(run, 2 * self.x_bytes))
            for step in range(2):
                self._add_plain(place, x_place, step)

    def compressed(
        self, headers: ir.Value, weights: ir.Value, x: ir.Value, pairs: ir.Value
    ) -> None:
        """Blocks of 16 pairs one after another, each as long as its header says."""
        e = self.e
        steps = BLOCK // 2
        place = e.variable(weights)
        with e.loop(e.b.lshr(pairs, ir.Constant(I64, 4))) as block:
            header = e.load(e.at(headers, e.times(block, 2)), I16, 2)
            weight = e.b.load(place)
            x_place = e.at(x, e.times(block, steps * self.x_bytes))
            is_plain = e.b.icmp_unsigned("==", header, ir.Constant(I16, PLAIN_BLOCK))
            with e.b.if_else(is_plain) as (when_plain, otherwise):
                with when_plain:
                    for step in range(steps):
                        self._add_plain(weight, x_place, step)
                    e.b.store(e.at(weight, steps * _PAIR_BYTES), place)
                with otherwise:
                    self._add_short(weight, header, x_place)
                    size = steps * _SHORT_PAIR_BYTES + steps * TILE_ROWS
                    e.b.store(e.at(weight, size), place)

    def _add_plain(self, weights: ir.Value, x: ir.Value, step: int) -> None:
        e = self.e
        place = e.at(e.at(weights, step * _PAIR_BYTES), e.times(self.first, 4))
        e.prefetch(e.at(place, AHEAD))
        self._add(e.load(place, vector(I32, self.lanes), 4), x, step)

    def _add_short(self, weights: ir.Value, header: ir.Value, x: ir.Value) -> None:
        """A block in 12 bits: a byte of sign and mantissa, and half a byte of exponent."""
        e, b = self.e, self.e.b
        shorts = vector(I16, 2 * self.lanes)

        def constant(value: int) -> ir.Constant:
            return ir.Constant(shorts, [value] * shorts.count)

        def widened(place: ir.Value, *, signed: bool) -> ir.Value:
            values = e.load(e.at(place, e.times(self.first, 2)), vector(I8, shorts.count), 1)
            return b.sext(values, shorts) if signed else b.zext(values, shorts)

        base = e.splat(header, shorts.count)
        nibbles = e.at(weights, BLOCK // 2 * _SHORT_PAIR_BYTES)
        for offset in range(0, BLOCK // 2 * (_SHORT_PAIR_BYTES + TILE_ROWS), LINE):
            e.prefetch(e.at(weights, AHEAD + offset))
        for number in range(BLOCK // 4):
            both = widened(e.at(nibbles, number * _SHORT_PAIR_BYTES), signed=False)
            exponents = (b.shl(both, constant(7)), b.shl(both, constant(3)))
            for half, exponent in enumerate(exponents):
                step = 2 * number + half
                rest = widened(e.at(weights, step * _SHORT_PAIR_BYTES), signed=True)
                # Widening copied the sign up to the top bit; the exponent's place is cleared.
                rest = b.and_(rest, constant(0x807F))
                offset = b.and_(exponent, constant(0x0780))
                # The nibble 0 is the exponent 0, of zeros and subnormals.
                some = b.icmp_unsigned("!=", offset, constant(0))
                exponent = b.select(some, b.add(offset, base), constant(0))
                value = b.or_(rest, exponent)
                self._add(b.bitcast(value, vector(I32, self.lanes)), x, step)

    def _add(self, pair: ir.Value, x: ir.Value, step: int) -> None:
        """Adds a pair of columns, ``step`` pairs after ``x``, to its chain."""
        e, b = self.e, self.e.b
        place = e.at(x, step * self.x_bytes)
        chain = step % _CHAINS * self.tokens
        if not self.exact:
            for token in range(self.tokens):
                both = e.splat(e.load(e.at(place, 4 * token), I32, 4), self.lanes)
                total = self.sums.get(chain + token)
                self.sums.set(chain + token, self._dot(total, pair, both))
            return
        floats = vector(F32, self.lanes)
        even = b.bitcast(b.shl(pair, e.int_constant(16, self.lanes)), floats)
        odd = b.bitcast(b.and_(pair, e.int_constant(0xFFFF0000, self.lanes)), floats)
        for token in range(self.tokens):
            total = self.sums.get(chain + token)
            for column, weight in enumerate((even, odd)):
                value = e.load(e.at(place, 4 * (column * self.tokens + token)), F32, 4)
                total = e.fma(weight, e.splat(value, self.lanes), total)
            self.sums.set(chain + token, total)

    def _dot(self, total: ir.Value, pair: ir.Value, x: ir.Value) -> ir.Value:
        e = self.e
        kind = vector(I32, self.lanes)
        return e.named(
            "llvm.x86.avx512bf16.dpbf16ps.512",
            vector(F32, self.lanes),
            total,
            e.b.bitcast(pair, kind),
            e.b.bitcast(x, kind),
        )


def _store_sums(
    e: Emitter, sums: Accumulators, tokens: int, out: ir.Value, out_stride: ir.Value
) -> None:
    for token in range(tokens):
        total = e.b.fadd(sums.get(token), sums.get(tokens + token))
        e.store(e.at(out, e.times(out_stride, token)), total, 4)
