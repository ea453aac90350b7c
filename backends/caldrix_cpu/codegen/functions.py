"""Elementary functions on sixteen lanes, and the activations built on them."""

from __future__ import annotations

from numba import float32

from caldrix_cpu import tape
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    Floats,
    fma,
    larger,
    largest_lane,
    power_of_two,
    round_to_even,
    smaller,
    splat,
    to_ints,
)

_LOG2_E = 1.4426950408889634
# ln 2 in two parts: the first has few bits, so that its product with an integer is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# exp(r) on |r| <= ln(2) / 2: the polynomial of Cephes' expf (Moshier, 1992), within 2 ulp.
_C6, _C5, _C4 = 1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3
_C3, _C2, _C1 = 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1
LEAST, _MOST = -87.0, 88.0
"""The bounds of an exponential's argument: under the first float32 has no normal number."""
_DEEPEST = -200.0
"""Where activations are nothing; the bounded exponential would not divide a lower number down."""


@kernel
def exponential(x: Floats) -> Floats:
    """``exp(x)``, exactly 1 at 0; x is held between -87 and 88, where float32 is normal.

    NaN counts as -87.
    """
    x = smaller(larger(x, splat(float32(LEAST))), splat(float32(_MOST)))
    n = round_to_even(x * splat(float32(_LOG2_E)))
    r = fma(n, splat(float32(-_LN2_HIGH)), x)
    r = fma(n, splat(float32(-_LN2_LOW)), r)
    p = fma(splat(float32(_C6)), r, splat(float32(_C5)))
    p = fma(p, r, splat(float32(_C4)))
    p = fma(p, r, splat(float32(_C3)))
    p = fma(p, r, splat(float32(_C2)))
    p = fma(p, r, splat(float32(_C1)))
    p = fma(p * r, r, r) + splat(float32(1.0))
    return p * power_of_two(to_ints(n))


@kernel
def exponential_of(x: float) -> float:
    """``exp(x)`` of one number, the same as in a vector."""
    return largest_lane(exponential(splat(x)))


@kernel
def _not_too_deep(x: Floats) -> Floats:
    """``x``, or `_DEEPEST` where that is larger; NaN stays NaN."""
    return larger(splat(float32(_DEEPEST)), x)


@kernel
def _one(x: Floats) -> Floats:
    """1; where x is NaN, that."""
    one = splat(float32(1.0))
    return smaller(one, larger(one, x))


@kernel
def silu(x: Floats) -> Floats:
    """``x * sigmoid(x)``; NaN stays NaN."""
    one = splat(float32(1.0))
    return _not_too_deep(x) / (one + exponential(splat(float32(0.0)) - x))


@kernel
def sigmoid(x: Floats) -> Floats:
    """``1 / (1 + exp(-x))``; NaN stays NaN."""
    one = splat(float32(1.0))
    return _one(x) / (one + exponential(splat(float32(0.0)) - x))


@kernel
def gelu_tanh(x: Floats) -> Floats:
    """The tanh approximation of GELU: ``x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 * x ** 3))``.

    ``0.5 * (1 + tanh(u))`` is ``sigmoid(2 * u)``. NaN stays NaN.
    """
    cube = x * x * x
    u = fma(cube, splat(float32(0.044715)), x) * splat(float32(-1.5957691216057308))
    one = splat(float32(1.0))
    return _not_too_deep(x) / (one + exponential(u))


@kernel
def softplus(x: Floats) -> Floats:
    """``log(1 + exp(x))``, within 3 ulp; NaN stays NaN.

    It is ``max(x, 0) + log(1 + y)`` with ``y = exp(-abs(x))``, and the logarithm is
    ``2 * artanh(z)`` with ``z = y / (2 + y)``: at most 1/3, so that eight terms of artanh's own
    series are enough.
    """
    zero = splat(float32(0.0))
    positive = larger(zero, x)
    y = exponential(x - positive - positive)
    z = y / (splat(float32(2.0)) + y)
    square = z * z
    series = splat(float32(1.0 / 15.0))
    for power in (13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0):
        series = fma(series, square, splat(float32(1.0 / power)))
    return positive + (z + z) * series


@kernel
def activated(x: Floats, activation: int) -> Floats:
    """The activation of a number that `caldrix_cpu.tape` gives it; NaN stays NaN."""
    if activation == tape.GATED_SILU:
        return silu(x)
    if activation == tape.GATED_SIGMOID:
        return sigmoid(x)
    return gelu_tanh(x)
