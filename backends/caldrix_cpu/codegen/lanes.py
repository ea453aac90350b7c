"""Vectors of 16 lanes as numba values, and the instructions on them.

A vector of 16 float32 or int32 is a plain LLVM value: one register with AVX-512, two with AVX2,
four on narrower machines. Addresses are plain integers, so kernels need no arrays, no allocation
and no Python object.

Sums across lanes are taken in one fixed order, and nothing here allows reassociation: a kernel
gives the same bits on every call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import llvmlite.ir as ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

from caldrix_cpu.codegen.emit import F16, F32, I8, I16, I32, I64, LANES, Emitter, vector


class LanesType(types.Type):  # type: ignore[misc]  # numba is untyped
    """Sixteen lanes of one element type."""

    def __init__(self, name: str, element: ir.Type) -> None:
        super().__init__(name=name)
        self.vector = ir.VectorType(element, LANES)


FLOATS = LanesType("float32x16", F32)
INTS = LanesType("int32x16", I32)
MASK = LanesType("bool1x16", ir.IntType(1))

# What kernels' annotations call them; numba finds the types out by itself.
Floats: TypeAlias = Any
Ints: TypeAlias = Any


@register_model(LanesType)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]  # numba is untyped
    def __init__(self, manager: Any, lanes: LanesType) -> None:
        super().__init__(manager, lanes, lanes.vector)


Emit = Callable[..., ir.Value | None]


def instruction(result: types.Type, *arguments: types.Type) -> Callable[[Emit], Any]:
    """Makes ``emit(Emitter, *values)`` callable from kernels, with the given types."""

    def decorate(emit: Emit) -> Any:
        def typed(_typing: Any, *_arguments: Any) -> Any:
            def generate(context: Any, builder: ir.IRBuilder, _signature: Any, values: Any) -> Any:
                value = emit(Emitter(builder), *values)
                return context.get_dummy_value() if value is None else value

            return result(*arguments), generate

        # numba reads the number of arguments off the signature.
        names = ", ".join(f"a{index}" for index in range(len(arguments)))
        source = f"lambda typing{', ' if names else ''}{names}: typed(typing, {names})"
        function = eval(source, {"typed": typed})  # the text above
        function.__name__ = emit.__name__
        return intrinsic(function)

    return decorate


@instruction(types.float32, types.int64)
def load_float(e: Emitter, address: ir.Value) -> ir.Value:
    """One float32."""
    return e.load(address, F32, 4)


@instruction(types.void, types.int64, types.float32)
def store_float(e: Emitter, address: ir.Value, value: ir.Value) -> None:
    """One float32."""
    e.store(address, value, 4)


@instruction(types.int64, types.int64)
def load_int(e: Emitter, address: ir.Value) -> ir.Value:
    """One int64."""
    return e.load(address, I64, 8)


@instruction(types.int64, types.int64)
def load_byte(e: Emitter, address: ir.Value) -> ir.Value:
    """One byte, unsigned."""
    return e.b.zext(e.load(address, I8, 1), I64)


@instruction(types.int64, types.int64)
def load_signed_byte(e: Emitter, address: ir.Value) -> ir.Value:
    """One byte, signed."""
    return e.b.sext(e.load(address, I8, 1), I64)


@instruction(types.int64, types.int64)
def load_bits(e: Emitter, address: ir.Value) -> ir.Value:
    """Four bytes, unsigned."""
    return e.b.zext(e.load(address, I32, 4), I64)


@instruction(types.float32, types.int64)
def load_half_float(e: Emitter, address: ir.Value) -> ir.Value:
    """One float16 as float32, exactly."""
    halves = vector(I16, 4)
    one = e.b.insert_element(
        ir.Constant(halves, None), e.load(address, I16, 2), ir.Constant(I32, 0)
    )
    wide = e.from_half(e.b.bitcast(one, vector(F16, 4)))
    return e.b.extract_element(wide, ir.Constant(I32, 0))


@instruction(types.void, types.int64, types.int64)
def copy_word(e: Emitter, target: ir.Value, source: ir.Value) -> None:
    """Four bytes from one address to another."""
    e.store(target, e.load(source, I32, 1), 1)


@instruction(types.float32, types.int64)
def float_of_bits(e: Emitter, bits: ir.Value) -> ir.Value:
    """The float32 whose bits are the low half of an int64."""
    return e.b.bitcast(e.b.trunc(bits, I32), F32)


@instruction(FLOATS, types.int64)
def load(e: Emitter, address: ir.Value) -> ir.Value:
    """Sixteen float32."""
    return e.load(address, FLOATS.vector, 4)


@instruction(types.void, types.int64, FLOATS)
def store(e: Emitter, address: ir.Value, value: ir.Value) -> None:
    """Sixteen float32."""
    e.store(address, value, 4)


@instruction(FLOATS, types.float32)
def splat(e: Emitter, value: ir.Value) -> ir.Value:
    """The same value in every lane."""
    return e.splat(value, LANES)


@instruction(INTS, types.int32)
def splat_int(e: Emitter, value: ir.Value) -> ir.Value:
    """The same value in every lane."""
    return e.splat(value, LANES)


@instruction(INTS, INTS, INTS)
def add_ints(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Lane by lane."""
    return e.b.add(x, y)


@instruction(INTS)
def lane_numbers(e: Emitter) -> ir.Value:
    """0 to 15."""
    return ir.Constant(INTS.vector, list(range(LANES)))


@instruction(FLOATS, FLOATS, FLOATS, FLOATS)
def fma(e: Emitter, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """``x * y + z``, rounded once where the machine can."""
    return e.fma(x, y, z)


@instruction(types.float32, FLOATS, FLOATS)
def largest_magnitude(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """The largest of all lanes' magnitudes; NaN if any lane is, else infinity if any is.

    Without their sign, float32 have the order of their bits as integers, and NaN come last.
    """
    mask = e.int_constant(0x7FFFFFFF, LANES)

    def larger_int(a: ir.Value, b: ir.Value) -> ir.Value:
        return e.b.select(e.b.icmp_signed(">", a, b), a, b)

    bits = [e.b.and_(e.b.bitcast(each, INTS.vector), mask) for each in (x, y)]
    return e.b.bitcast(e.fold(larger_int(*bits), larger_int), F32)


@instruction(FLOATS, FLOATS)
def round_to_even(e: Emitter, x: ir.Value) -> ir.Value:
    """Each lane's nearest integer, ties to even."""
    return e.call("llvm.rint", FLOATS.vector, x)


@instruction(types.float32, types.float32)
def square_root_of(e: Emitter, x: ir.Value) -> ir.Value:
    """A square root."""
    return e.call("llvm.sqrt", F32, x)


@instruction(FLOATS, FLOATS, FLOATS)
def larger(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Lane by lane; y where either is NaN."""
    return e.b.select(e.b.fcmp_ordered(">", x, y), x, y)


@instruction(FLOATS, FLOATS, FLOATS)
def smaller(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Lane by lane; y where either is NaN."""
    return e.b.select(e.b.fcmp_ordered("<", x, y), x, y)


@instruction(INTS, FLOATS)
def to_ints(e: Emitter, x: ir.Value) -> ir.Value:
    """Each lane cut to an integer."""
    return e.b.fptosi(x, INTS.vector)


@instruction(FLOATS, INTS)
def power_of_two(e: Emitter, x: ir.Value) -> ir.Value:
    """``2 ** x`` for lanes in -126 to 127."""
    biased = e.b.add(x, e.int_constant(127, LANES))
    return e.b.bitcast(e.b.shl(biased, e.int_constant(23, LANES)), FLOATS.vector)


@instruction(types.void, types.int64, INTS)
def store_bytes(e: Emitter, address: ir.Value, x: ir.Value) -> None:
    """Sixteen int8, each lane's lowest byte."""
    e.store(address, e.b.trunc(x, ir.VectorType(I8, LANES)), 1)


@instruction(types.int32, INTS)
def sum_ints(e: Emitter, x: ir.Value) -> ir.Value:
    """The sum of all lanes."""
    return e.fold(x, e.b.add)


@instruction(types.float32, FLOATS)
def sum_lanes(e: Emitter, x: ir.Value) -> ir.Value:
    """The sum of all lanes: halves added to each other until one is left."""
    return e.fold(x, e.b.fadd)


@instruction(types.float32, FLOATS)
def largest_lane(e: Emitter, x: ir.Value) -> ir.Value:
    """The largest lane."""
    return e.fold(x, lambda a, b: e.b.select(e.b.fcmp_ordered(">", a, b), a, b))


@instruction(MASK, INTS, INTS)
def less(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
    """Lane by lane, signed."""
    return e.b.icmp_signed("<", x, y)


@instruction(FLOATS, MASK, FLOATS, FLOATS)
def choose(e: Emitter, mask: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """``x`` where the mask is set, else ``y``."""
    return e.b.select(mask, x, y)


@instruction(types.void, types.int64, FLOATS)
def store_halves(e: Emitter, address: ir.Value, x: ir.Value) -> None:
    """Sixteen float16, rounded to nearest even."""
    e.store(address, e.to_half(x), 2)


@instruction(types.void, types.int64, types.float32)
def store_half(e: Emitter, address: ir.Value, x: ir.Value) -> None:
    """One float16, rounded to nearest even."""
    e.store(address, e.to_half_scalar(x), 2)


@instruction(types.void, types.int64, FLOATS)
def store_bfloats(e: Emitter, address: ir.Value, x: ir.Value) -> None:
    """Sixteen bfloat16, rounded to nearest even."""
    upper = e.b.lshr(e.bfloat_bits(x), e.int_constant(16, LANES))
    e.store(address, e.b.trunc(upper, vector(I16, LANES)), 2)


@instruction(types.void, types.int64, FLOATS, FLOATS)
def store_bfloat_pairs(e: Emitter, address: ir.Value, x: ir.Value, y: ir.Value) -> None:
    """Sixteen pairs of bfloat16, one of each, rounded to nearest even."""
    low = e.b.lshr(e.bfloat_bits(x), e.int_constant(16, LANES))
    high = e.b.and_(e.bfloat_bits(y), e.int_constant(0xFFFF0000, LANES))
    e.store(address, e.b.or_(low, high), 4)


@instruction(types.int64, types.int64)
def fetch_and_increment(e: Emitter, address: ir.Value) -> ir.Value:
    """The value at an address before one was added to it, atomically."""
    return e.b.atomic_rmw("add", e.pointer(address, I64), ir.Constant(I64, 1), "acq_rel")


@instruction(types.int64, types.int64)
def load_acquire(e: Emitter, address: ir.Value) -> ir.Value:
    """An int64 that another thread released."""
    return e.b.load_atomic(e.pointer(address, I64), "acquire", 8)


@instruction(types.void, types.int64, types.int64)
def store_release(e: Emitter, address: ir.Value, value: ir.Value) -> None:
    """Publishes an int64 and all that was written before it."""
    e.b.store_atomic(value, e.pointer(address, I64), "release", 8)


@instruction(types.void)
def spin_pause(e: Emitter) -> None:
    """Tells the core that it waits in a loop."""
    e.spin_pause()


@instruction(types.void)
def yield_core(e: Emitter) -> None:
    """Lets another thread have this core."""
    function = cgutils.get_or_insert_function(e.b.module, ir.FunctionType(I32, []), "sched_yield")
    e.b.call(function, [])


@instruction(types.void, types.int64)
def prefetch(e: Emitter, address: ir.Value) -> None:
    """Asks for a cache line that will be read soon."""
    e.prefetch(address)


def _overload_lanes(function: Any, name: str) -> None:
    """Gives an operator its meaning on two vectors of float32."""

    @instruction(FLOATS, FLOATS, FLOATS)
    def apply(e: Emitter, x: ir.Value, y: ir.Value) -> ir.Value:
        return getattr(e.b, name)(x, y)

    # Without annotations: numba compares its signature with the implementation's.
    @overload(function, inline="always")
    def choose_overload(x, y):  # type: ignore[no-untyped-def]
        if x == FLOATS and y == FLOATS:
            return lambda x, y: apply(x, y)
        return None


for _operator, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _overload_lanes(_operator, _name)
