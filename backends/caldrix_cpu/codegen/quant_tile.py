"""The tile kernel of quantized weights: 16 rows against a group of tokens.

The layout is `caldrix_cpu.tiles.layouts.QuantLayout`. Activations are int8 with a float32 scale
for each block of 32. Within a block the products are summed in integers, exactly; the blocks' sums
are then added in float32, in the order of the columns, whatever the number of tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llvmlite.ir as ir
from numba import types

from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.emit import AHEAD, F16, F32, I8, I16, I32, I64, Emitter, vector
from caldrix_cpu.codegen.lanes import instruction
from caldrix_cpu.tiles.layouts import BLOCK, LINE, PLANES, TILE_ROWS, QuantLayout

_PAIRS_OF_BYTES = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}
_PAIRS_OF_SHORTS = {
    4: "llvm.x86.sse2.pmadd.wd",
    8: "llvm.x86.avx2.pmadd.wd",
    16: "llvm.x86.avx512.pmaddw.d.512",
}
_WORDS = BLOCK // 4
"""Groups of four columns in a block: what one 32-bit lane holds of it."""


def quant_tile(layout: QuantLayout, tokens: int) -> Any:
    """The kernel for so many tokens:

    ``tile(supers, scales, quants, xq, xs, xc, blocks, out, out_stride)``, all int64. The first
    three are the tile's regions. ``xq`` holds the activations, ``[blocks][8][tokens][4]`` int8;
    ``xs`` their scales, ``[blocks][tokens]`` float32; ``xc`` scale times sum, in the same shape,
    or ``[blocks][2][tokens]`` where scales are of 16 columns. ``out`` gets 16 float32 for each
    token, ``out_stride`` bytes apart.
    """

    @instruction(types.void, *[types.int64] * 9)
    def tile(e: Emitter, *arguments: ir.Value) -> None:
        lanes = machine.TARGET.lanes
        with e.loop(ir.Constant(I64, TILE_ROWS // lanes)) as part:
            first = e.times(part, lanes)
            _QuantTile(e, layout, tokens, first).emit(*arguments)

    return tile


class _QuantTile:
    """Emits one pass over a tile's blocks, for as many rows as a register has lanes."""

    def __init__(self, e: Emitter, layout: QuantLayout, tokens: int, first: ir.Value) -> None:
        self.e = e
        self.layout = layout
        self.tokens = tokens
        self.first = first
        self.lanes = machine.TARGET.lanes

    def emit(
        self,
        supers: ir.Value,
        scales: ir.Value,
        quants: ir.Value,
        xq: ir.Value,
        xs: ir.Value,
        xc: ir.Value,
        blocks: ir.Value,
        out: ir.Value,
        out_stride: ir.Value,
    ) -> None:
        e, layout, tokens = self.e, self.layout, self.tokens
        groups = BLOCK // layout.group
        sums = e.accumulators(vector(F32, self.lanes), tokens)
        with e.loop(blocks) as block:
            block_scales = e.at(scales, e.times(block, layout.block_scale_bytes))
            block_quants = e.at(quants, e.times(block, layout.block_quant_bytes))
            block_xq = e.at(xq, e.times(block, BLOCK * tokens))
            block_xs = e.at(xs, e.times(block, 4 * tokens))
            block_xc = e.at(xc, e.times(block, 4 * groups * tokens))
            for line in range(0, layout.block_quant_bytes + layout.block_scale_bytes, LINE):
                e.prefetch(e.at(block_quants, AHEAD + line))
            words = self._words(block_quants)
            factors = self._factors(supers, block)
            x_scales = [e.load(e.at(block_xs, 4 * token), F32, 4) for token in range(tokens)]
            for group in range(groups):
                scale, minimum = self._scale(block_scales, factors, group)
                run = range(group * _WORDS // groups, (group + 1) * _WORDS // groups)
                for token in range(tokens):
                    x = [
                        e.load(e.at(block_xq, 4 * (word * tokens + token)), I32, 4) for word in run
                    ]
                    dot = self._dot([words[word] for word in run], x)
                    x_scale = e.splat(x_scales[token], self.lanes)
                    x_sum = e.load(e.at(block_xc, 4 * (group * tokens + token)), F32, 4)
                    total = sums.get(token)
                    value = e.b.sitofp(dot, vector(F32, self.lanes))
                    total = e.fma(value, e.b.fmul(scale, x_scale), total)
                    if minimum is not None:
                        total = e.fma(minimum, e.splat(x_sum, self.lanes), total)
                    sums.set(token, total)
        row = e.at(out, e.times(self.first, 4))
        for token in range(tokens):
            e.store(e.at(row, e.times(out_stride, token)), sums.get(token), 4)

    def _words(self, quants: ir.Value) -> list[ir.Value]:
        """A block's values, as eight vectors of four unsigned bytes a lane."""
        e, lanes = self.e, self.lanes
        words: list[ir.Value | None] = [None] * _WORDS
        shift, offset = 0, 0
        for bits in PLANES[self.layout.bits]:
            for number in range(bits):
                place = e.at(quants, offset + 4 * TILE_ROWS * number)
                plane = e.load(e.at(place, e.times(self.first, 4)), vector(I32, lanes), 4)
                for field in range(8 // bits):
                    word = number + bits * field
                    value = self._field(plane, bits * field, shift, bits)
                    before = words[word]
                    words[word] = value if before is None else e.b.or_(before, value)
            shift += bits
            offset += TILE_ROWS * BLOCK * bits // 8
        return [word for word in words if word is not None]

    def _field(self, plane: ir.Value, at: int, to: int, bits: int) -> ir.Value:
        """Bits ``at`` and on of each byte, moved to ``to``."""
        e = self.e
        if bits == 8:
            return plane
        amount = e.int_constant(abs(at - to), self.lanes)
        if at > to:
            moved = e.b.lshr(plane, amount)
        elif at < to:
            moved = e.b.shl(plane, amount)
        else:
            moved = plane
        kept = ((1 << bits) - 1) << to
        return e.b.and_(moved, e.int_constant(kept * 0x01010101, self.lanes))

    def _factors(self, supers: ir.Value, block: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """A two-level format's ``d`` and ``dmin`` for the block's 256 columns."""
        e, layout = self.e, self.layout
        if not layout.two_level:
            return e.int_constant(0, self.lanes), None
        number = e.b.lshr(block, ir.Constant(I64, 3))
        place = e.at(supers, e.times(number, layout.super_bytes))
        d = self._halves(place)
        return d, self._halves(e.at(place, 2 * TILE_ROWS)) if layout.minima else None

    def _scale(
        self, scales: ir.Value, factors: tuple[ir.Value, ir.Value | None], group: int
    ) -> tuple[ir.Value, ir.Value | None]:
        """A group's scale and minimum, float32 lanes."""
        e, layout = self.e, self.layout
        if layout.two_level:
            each = TILE_ROWS * (2 if layout.minima else 1)
            place = e.at(scales, group * each)
            scale = e.b.fmul(factors[0], self._bytes(place, signed=True))
            if factors[1] is not None:
                minima = self._bytes(e.at(place, TILE_ROWS), signed=False)
                return scale, e.b.fneg(e.b.fmul(factors[1], minima))
        else:
            scale = self._halves(scales)
            if layout.minima:
                return scale, self._halves(e.at(scales, 2 * TILE_ROWS))
        if not layout.offset:
            return scale, None
        offset = ir.Constant(vector(F32, self.lanes), [-float(layout.offset)] * self.lanes)
        return scale, e.b.fmul(scale, offset)

    def _halves(self, place: ir.Value) -> ir.Value:
        """The lanes' float16 of ``[16]``, as float32."""
        e = self.e
        return e.from_half(e.load(e.at(place, e.times(self.first, 2)), vector(F16, self.lanes), 2))

    def _bytes(self, place: ir.Value, *, signed: bool) -> ir.Value:
        """The lanes' bytes of ``[16]``, as float32."""
        e = self.e
        values = e.load(e.at(place, self.first), vector(I8, self.lanes), 1)
        extend = e.b.sext if signed else e.b.zext
        return e.b.sitofp(extend(values, vector(I32, self.lanes)), vector(F32, self.lanes))

    def _dot(self, weights: list[ir.Value], x: list[ir.Value]) -> ir.Value:
        """The sum of products of unsigned bytes with signed ones, four to a lane and a word."""
        target = machine.TARGET
        if target.dot:
            return self._sum(weights, x, self._four_products)
        if target.x86 and target.lanes > 4 and self.layout.bits < 8:
            return self._dot_narrow(weights, x)
        return self._sum(weights, x, self._in_pairs if target.x86 else self._byte_by_byte)

    def _sum(
        self,
        weights: list[ir.Value],
        x: list[ir.Value],
        add: Callable[[ir.Value, ir.Value, ir.Value], ir.Value],
    ) -> ir.Value:
        total: ir.Value = self.e.int_constant(0, self.lanes)
        for weight, value in zip(weights, x, strict=True):
            total = add(total, weight, value)
        return total

    def _four_products(self, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
        e = self.e
        kind = vector(I8, 4 * self.lanes)
        weights, x = e.b.bitcast(weights, kind), e.b.bitcast(e.splat(x, self.lanes), kind)
        name = "llvm.x86.avx512.vpdpbusd.512"
        return e.named(name, vector(I32, self.lanes), total, weights, x)

    def _dot_narrow(self, weights: list[ir.Value], x: list[ir.Value]) -> ir.Value:
        """Pairs of products in 16 bits, two words added up before they are widened.

        Four products of at most 63 * 127 fit 16 bits.
        """
        e, b = self.e, self.e.b
        narrow, wide = _PAIRS_OF_BYTES[self.lanes], _PAIRS_OF_SHORTS[self.lanes]
        bytes_, shorts = vector(I8, 4 * self.lanes), vector(I16, 2 * self.lanes)
        ones = ir.Constant(shorts, [1] * shorts.count)
        products = [
            e.named(
                narrow, shorts, b.bitcast(weight, bytes_),
                b.bitcast(e.splat(value, self.lanes), bytes_),
            )
            for weight, value in zip(weights, x, strict=True)
        ]  # fmt: skip
        total: ir.Value = e.int_constant(0, self.lanes)
        for first, second in zip(products[::2], products[1::2], strict=True):
            both = b.add(first, second)
            total = b.add(total, e.named(wide, vector(I32, self.lanes), both, ones))
        return total

    def _in_pairs(self, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
        """Even and odd bytes widened to 16 bits, for the instruction that adds pairs."""
        e, b = self.e, self.e.b
        pairs = vector(I16, 2 * self.lanes)
        name = _PAIRS_OF_SHORTS[self.lanes]
        low = e.int_constant(0x00FF00FF, self.lanes)
        eight = ir.Constant(pairs, [8] * pairs.count)
        signed = b.bitcast(e.splat(x, self.lanes), pairs)
        x_even, x_odd = b.ashr(b.shl(signed, eight), eight), b.ashr(signed, eight)
        even = b.bitcast(b.and_(weights, low), pairs)
        odd = b.lshr(b.bitcast(weights, pairs), eight)
        for one, other in ((even, x_even), (odd, x_odd)):
            total = b.add(total, e.named(name, vector(I32, self.lanes), one, other))
        return total

    def _byte_by_byte(self, total: ir.Value, weights: ir.Value, x: ir.Value) -> ir.Value:
        e, b = self.e, self.e.b
        byte = e.int_constant(0xFF, self.lanes)
        for place in range(4):
            weight = b.and_(b.lshr(weights, e.int_constant(8 * place, self.lanes)), byte)
            top = b.shl(x, ir.Constant(I32, 24 - 8 * place))
            value = e.splat(b.ashr(top, ir.Constant(I32, 24)), self.lanes)
            total = b.add(total, b.mul(weight, value))
        return total
