"""LLVM instructions with short names, for the kernels that numba's Python cannot express.

`Emitter` wraps an IR builder. What differs between machines is decided here and nowhere else, by
`machine.TARGET`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import llvmlite.ir as ir
from numba.core import cgutils

from caldrix_cpu.codegen import machine

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
LANES = 16
"""Lanes of a tile; what a register holds of them is `machine.TARGET.lanes`."""

AHEAD = 8192
"""Bytes between what a tile kernel reads and what it asks the memory for. A core's own prefetcher
stops at the end of a page and wants to be taught each new stream; asked so, the weights come from
one tile to the next without a pause."""

_HALF_INFINITY = 0x7C00
_LARGEST_HALF = 65504.0


def vector(element: ir.Type, count: int) -> ir.VectorType:
    """A vector type."""
    return ir.VectorType(element, count)


class Emitter:
    """Writes instructions at a builder's position."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.b = builder

    # Addresses and memory

    def at(self, address: ir.Value, offset: int | ir.Value) -> ir.Value:
        """An address some bytes on."""
        if isinstance(offset, int):
            offset = ir.Constant(I64, offset)
        return self.b.add(address, offset)

    def times(self, value: ir.Value, factor: int | ir.Value) -> ir.Value:
        """A product of int64."""
        if isinstance(factor, int):
            factor = ir.Constant(I64, factor)
        return self.b.mul(value, factor)

    def pointer(self, address: ir.Value, kind: ir.Type) -> ir.Value:
        """An integer address as a pointer."""
        return self.b.inttoptr(address, kind.as_pointer())

    def load(self, address: ir.Value, kind: ir.Type, align: int) -> ir.Value:
        """The value of a type at an address."""
        value = self.b.load(self.pointer(address, kind))
        value.align = align
        return value

    def store(self, address: ir.Value, value: ir.Value, align: int) -> None:
        """Writes a value to an address."""
        self.b.store(value, self.pointer(address, value.type)).align = align

    def prefetch(self, address: ir.Value) -> None:
        """Asks for a cache line, to be kept in the second-level cache."""
        kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        function = cgutils.get_or_insert_function(self.b.module, kind, "llvm.prefetch.p0")
        read, locality, data = (ir.Constant(I32, value) for value in (0, 2, 1))
        self.b.call(function, [self.pointer(address, I8), read, locality, data])

    @contextmanager
    def loop(self, count: ir.Value) -> Iterator[ir.Value]:
        """A loop over 0 to ``count`` - 1; the block's value is the index."""
        with cgutils.for_range(self.b, count, intp=I64) as each:
            yield each.index

    # Values

    def int_constant(self, value: int, lanes: int) -> ir.Constant:
        """The same int32 in every lane."""
        return ir.Constant(vector(I32, lanes), [value] * lanes)

    def splat(self, value: ir.Value, lanes: int) -> ir.Value:
        """A scalar in every lane."""
        kind = vector(value.type, lanes)
        undefined = ir.Constant(kind, ir.Undefined)
        first = self.b.insert_element(undefined, value, ir.Constant(I32, 0))
        return self.b.shuffle_vector(first, undefined, ir.Constant(vector(I32, lanes), [0] * lanes))

    def call(self, name: str, kind: ir.Type, *arguments: ir.Value) -> ir.Value:
        """An LLVM intrinsic whose arguments and result have one type."""
        suffix = f"v{kind.count}f32" if isinstance(kind, ir.VectorType) else "f32"
        signature = ir.FunctionType(kind, [kind] * len(arguments))
        function = cgutils.get_or_insert_function(self.b.module, signature, f"{name}.{suffix}")
        return self.b.call(function, arguments)

    def named(self, name: str, result: ir.Type, *arguments: ir.Value) -> ir.Value:
        """A machine's own intrinsic."""
        signature = ir.FunctionType(result, [argument.type for argument in arguments])
        function = cgutils.get_or_insert_function(self.b.module, signature, name)
        return self.b.call(function, arguments)

    def fma(self, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
        """``x * y + z``: fused where the machine can, else two roundings, always the same."""
        if machine.TARGET.fma:
            return self.call("llvm.fma", x.type, x, y, z)
        return self.b.fadd(self.b.fmul(x, y), z)

    def fold(self, x: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """All lanes combined: the upper half with the lower until one lane is left."""
        count = x.type.count
        while count > 1:
            count //= 2
            halves = [
                self.b.shuffle_vector(
                    x, x, ir.Constant(vector(I32, count), list(range(first, first + count)))
                )
                for first in (0, count)
            ]
            x = combine(*halves)
        return self.b.extract_element(x, ir.Constant(I32, 0))

    def spin_pause(self) -> None:
        """Tells the core that it waits in a loop."""
        if machine.TARGET.x86:
            self.named("llvm.x86.sse2.pause", ir.VoidType())
        elif machine.TARGET.arm:
            self.named("llvm.aarch64.hint", ir.VoidType(), ir.Constant(I32, 1))

    # Narrow floats

    def from_half(self, x: ir.Value) -> ir.Value:
        """Float16 lanes as float32, exactly."""
        lanes = x.type.count
        if machine.TARGET.half:
            return self.b.fpext(x, vector(F32, lanes))
        bits = self.b.zext(self.b.bitcast(x, vector(I16, lanes)), vector(I32, lanes))
        magnitude = self.b.and_(bits, self.int_constant(0x7FFF, lanes))
        # Shifted into a float32's place the exponent is 112 too small; subnormals come out right.
        shifted = self.b.shl(magnitude, self.int_constant(13, lanes))
        scale = ir.Constant(vector(F32, lanes), [2.0**112] * lanes)
        value = self.b.fmul(self.b.bitcast(shifted, vector(F32, lanes)), scale)
        special = self.b.icmp_unsigned(">=", magnitude, self.int_constant(_HALF_INFINITY, lanes))
        infinite = self.b.or_(shifted, self.int_constant(0x7F800000, lanes))
        result = self.b.select(special, infinite, self.b.bitcast(value, vector(I32, lanes)))
        sign = self.b.shl(
            self.b.and_(bits, self.int_constant(0x8000, lanes)), self.int_constant(16, lanes)
        )
        return self.b.bitcast(self.b.or_(result, sign), vector(F32, lanes))

    def to_half(self, x: ir.Value) -> ir.Value:
        """Float32 lanes rounded to float16, as bits where the machine has no such type.

        Finite numbers past the largest float16 become that; infinities and NaN stay.
        """
        lanes = x.type.count
        x = self._within_half(x)
        if machine.TARGET.half:
            return self.b.fptrunc(x, vector(F16, lanes))
        return self.b.trunc(self._half_bits(x), vector(I16, lanes))

    def _within_half(self, x: ir.Value) -> ir.Value:
        kind = x.type
        infinite = self.b.fcmp_ordered(
            "==", self.call("llvm.fabs", kind, x), ir.Constant(kind, [math.inf] * kind.count)
        )
        bounded = x
        for bound, beyond in ((_LARGEST_HALF, ">"), (-_LARGEST_HALF, "<")):
            limit = ir.Constant(kind, [bound] * kind.count)
            bounded = self.b.select(self.b.fcmp_ordered(beyond, bounded, limit), limit, bounded)
        return self.b.select(infinite, x, bounded)

    def to_half_scalar(self, x: ir.Value) -> ir.Value:
        """One float32 rounded to float16, as `to_half` does it."""
        lanes = self.b.insert_element(ir.Constant(vector(F32, 4), None), x, ir.Constant(I32, 0))
        return self.b.extract_element(self.to_half(lanes), ir.Constant(I32, 0))

    def _half_bits(self, x: ir.Value) -> ir.Value:
        """The bits of float32 lanes rounded to float16, to nearest even."""
        lanes = x.type.count

        def constant(value: int) -> ir.Constant:
            return self.int_constant(value, lanes)

        b = self.b
        bits = b.bitcast(x, vector(I32, lanes))
        magnitude = b.and_(bits, constant(0x7FFFFFFF))
        sign = b.lshr(b.and_(bits, constant(0x80000000)), constant(16))
        # Normal: drop 13 bits of mantissa, rounding to even; the exponent is 112 less.
        odd = b.and_(b.lshr(magnitude, constant(13)), constant(1))
        rounded = b.add(magnitude, b.add(odd, constant(0xFFF)))
        normal = b.lshr(b.sub(rounded, constant(112 << 23)), constant(13))
        # Subnormal: adding 0.5 lets the float32 addition itself round to multiples of 2**-24.
        half = ir.Constant(vector(F32, lanes), [0.5] * lanes)
        shifted = b.fadd(b.bitcast(magnitude, vector(F32, lanes)), half)
        subnormal = b.sub(b.bitcast(shifted, vector(I32, lanes)), constant(0x3F000000))
        value = b.select(b.icmp_unsigned("<", magnitude, constant(113 << 23)), subnormal, normal)
        overflow = b.icmp_unsigned(">=", rounded, constant(143 << 23))
        value = b.select(overflow, constant(_HALF_INFINITY), value)
        nan = b.icmp_unsigned(">", magnitude, constant(0x7F800000))
        value = b.select(nan, constant(0x7E00), value)
        return b.or_(value, sign)

    def bfloat_bits(self, x: ir.Value) -> ir.Value:
        """Float32 lanes' bits, rounded to nearest even at bit 16; the lower bits mean nothing.

        A NaN stays one: its quiet bit is set instead of a rounding that could carry it to zero.
        """
        lanes = x.type.count
        bits = self.b.bitcast(x, vector(I32, lanes))
        upper = self.b.lshr(bits, self.int_constant(16, lanes))
        odd = self.b.and_(upper, self.int_constant(1, lanes))
        rounded = self.b.add(bits, self.b.add(odd, self.int_constant(0x7FFF, lanes)))
        quiet = self.b.or_(bits, self.int_constant(0x400000, lanes))
        return self.b.select(self.b.fcmp_unordered("uno", x, x), quiet, rounded)

    # Variables

    def variable(self, initial: ir.Value) -> ir.Value:
        """A place for a value that a loop changes; LLVM makes it a register."""
        place = cgutils.alloca_once(self.b, initial.type)
        self.b.store(initial, place)
        return place

    def accumulators(self, kind: ir.VectorType, count: int) -> Accumulators:
        """So many sums, zero."""
        return Accumulators(self, kind, count)


class Accumulators:
    """Sums that a loop adds to; LLVM keeps them in registers."""

    def __init__(self, e: Emitter, kind: ir.VectorType, count: int) -> None:
        self._b = e.b
        self._places = [e.variable(ir.Constant(kind, None)) for _ in range(count)]

    def get(self, index: int) -> ir.Value:
        """The sum so far."""
        return self._b.load(self._places[index])

    def set(self, index: int, value: ir.Value) -> None:
        """Replaces a sum."""
        self._b.store(value, self._places[index])
