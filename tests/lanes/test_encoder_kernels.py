"""Every operation of encoders, through programs of one operation, against float64.

Tolerances are those of float32 for the sum in question, the number of roundings times ``2**-24``,
and where attention is in bfloat16 those of rounding to it, ``2**-9`` of what is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pytest

from caldrix.models.encoder_program import EncoderBuilder, EncoderProgram, PixelShuffle
from caldrix.models.lane import LaneOptions
from caldrix.models.program import Activation, ProgramError, Value
from caldrix_cpu.numpy_encoder import numpy_encoder
from caldrix_cpu.tape_encoder import tape_encoder
from caldrix_cpu.variants import Variant
from tests.lanes.test_operation_kernels import arguments, gelu_tanh, random, sigmoid, silu
from tests.support.compiled import EXECUTABLE, Array, float_tensor, named

Float64 = npt.NDArray[np.float64]
ROUNDING = 2.0**-24
BFLOAT_ROUNDING = 2.0**-9
every_variant = pytest.mark.parametrize("variant", EXECUTABLE, ids=named)
either = pytest.mark.parametrize(
    "variant", [None, *EXECUTABLE], ids=lambda each: "numpy" if each is None else each.name
)


def encoded(
    variant: Variant | None,
    x: Array,
    build: Callable[[EncoderBuilder, Value], Value],
    weights: Mapping[str, npt.NDArray[np.floating]] | None = None,
    *,
    kind: str = "F32",
    threads: int = 2,
) -> Array:
    """What ``build`` makes of the rows ``x``; no variant is numpy."""
    b = EncoderBuilder("probe", rows=len(x))
    build(b, b.input(x.shape[1]))
    tensors = {name: float_tensor(each, kind, name) for name, each in (weights or {}).items()}
    options = LaneOptions(context=1, threads=threads)
    program = b.build()
    running = (
        numpy_encoder(program, tensors, options)
        if variant is None
        else tape_encoder(program, tensors, options, variant)
    )
    with running as encoder:
        first = encoder.encode(x)
        encoder.encode(x[::-1].copy())
        # Nothing is kept from one tile to the next.
        np.testing.assert_array_equal(encoder.encode(x), first)
        assert first.shape == program.features
    return first


@either
@pytest.mark.parametrize("width", [16, 7, 40, 96])
def test_layer_norm(variant: Variant | None, width: int) -> None:
    x = random(50, width) * np.exp2(np.arange(50) % 30 - 10)[:, None].astype(np.float32)
    x += random(50, 1, seed=1) * np.abs(x).max(axis=1, keepdims=True)
    weight, bias, eps = random(width, seed=2), random(width, seed=3), 1e-5
    computed = encoded(
        variant,
        x,
        lambda b, value: b.layer_norm(value, "norm", eps=eps),
        {"norm.weight": weight, "norm.bias": bias},
    )
    exact = x.astype(np.float64)
    mean = exact.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt(exact.var(axis=1, keepdims=True) + eps)
    expected = (exact - mean) * scale * weight + bias
    # The mean of at most 96 numbers is off by that many roundings of the largest of them, and so
    # is each difference from it; a square root, a quotient and two products follow.
    largest = np.abs(x).max(axis=1, keepdims=True) * scale * np.abs(weight)
    bound = (width + 8) * ROUNDING * (largest + np.abs(expected) + np.abs(bias))
    assert (np.abs(computed - expected) <= bound).all()


@either
@pytest.mark.parametrize(
    ("activation", "exact", "roundings"),
    [
        (Activation.SILU, silu, 8),
        (Activation.GELU_TANH, gelu_tanh, 8 + 4 * 88),
        (Activation.SIGMOID, sigmoid, 8),
    ],
)
def test_activations(
    variant: Variant | None,
    activation: Activation,
    exact: Callable[[Float64], Float64],
    roundings: int,
) -> None:
    """As in gates, whose test says why; up to where a cube is a number."""
    x = np.where(np.abs(arguments()) < 1e12, arguments(), 0)[:, :250]
    computed = encoded(variant, x, lambda b, value: b.activate(value, activation))
    with np.errstate(over="ignore"):
        expected = exact(x.astype(np.float64))
    slack = 1e-35
    if variant is None and activation is Activation.GELU_TANH:
        # One plus a tanh near -1: what is left has few bits.
        slack = 4 * ROUNDING * np.abs(x).max(where=np.abs(x) < 10, initial=0)
    assert (np.abs(computed - expected) <= slack + roundings * ROUNDING * np.abs(expected)).all()


@either
@pytest.mark.parametrize("width", [16, 7, 40])
def test_a_table_is_added_row_by_row(variant: Variant | None, width: int) -> None:
    x, table = random(19, width), random(19, width, seed=1)
    computed = encoded(variant, x, lambda b, value: b.add_table(value, "table"), {"table": table})
    np.testing.assert_array_equal(computed, x + table)


@either
@pytest.mark.parametrize(("side", "factor"), [(4, 2), (6, 3), (8, 8), (3, 1)])
def test_a_pixel_shuffle_puts_squares_of_rows_side_by_side(
    variant: Variant | None, side: int, factor: int
) -> None:
    width = 5
    x = random(side**2, width)
    computed = encoded(variant, x, lambda b, value: b.pixel_shuffle(value, factor))
    for index, row in enumerate(computed.reshape(-1, factor, factor, width)):
        top, left = (factor * each for each in divmod(index, side // factor))
        for down in range(factor):
            for right in range(factor):
                expected = x[(top + down) * side + left + right]
                np.testing.assert_array_equal(row[down, right], expected)


@either
def test_a_projection_may_be_a_convolution_over_patches(variant: Variant | None) -> None:
    x, weight, bias = random(10, 48), random(24, 3, 4, 4, seed=1), random(24, seed=2)

    def build(b: EncoderBuilder, value: Value) -> Value:
        return b.linear(value, "weight", 24, bias="bias", shape=(24, 3, 4, 4))

    computed = encoded(variant, x, build, {"weight": weight, "bias": bias})
    matrix = weight.astype(np.float64).reshape(24, 48)
    bound = 50 * ROUNDING * (np.abs(x) @ np.abs(matrix).T + np.abs(bias))
    assert (np.abs(computed - (x @ matrix.T + bias)) <= bound).all()


def attention(q: Array, k: Array, v: Array, heads: int, scale: float) -> Float64:
    """The formula, in float64."""
    queries, keys, values = (
        each.astype(np.float64).reshape(len(each), heads, -1) for each in (q, k, v)
    )
    scores = scale * np.einsum("ihd,jhd->hij", queries, keys)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    out: Float64 = np.einsum("hij,jhd->ihd", weights, values).reshape(len(q), -1)
    return out


SHAPES = [(1, 2, 16), (9, 2, 20), (16, 3, 24), (70, 1, 64), (130, 2, 72), (333, 5, 8)]
"""Rows, heads and dimensions."""


def attended(
    variant: Variant | None, shape: tuple[int, int, int], kind: str, threads: int = 2
) -> tuple[Array, Float64, float]:
    """What is computed, what is right, and the largest value.

    Projections pick queries, keys and values out of the rows, exactly, if they hold bfloat16s.
    """
    rows, heads, dim = shape
    width, scale = heads * dim, dim**-0.5
    x = float_tensor(random(rows, 3 * width), "BF16").to_float32()
    columns = np.eye(3 * width)
    picks = {name: columns[index * width :][:width] for index, name in enumerate("qkv")}

    def build(b: EncoderBuilder, value: Value) -> Value:
        q, k, v = (b.linear(value, name, width) for name in "qkv")
        return b.attend_all(q, k, v, heads=heads, scale=scale)

    computed = encoded(variant, x, build, picks, kind=kind, threads=threads)
    q, k, v = np.split(x, 3, axis=1)
    return computed, attention(q, k, v, heads, scale), float(np.abs(v).max())


@either
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_attention_to_all(variant: Variant | None, shape: tuple[int, int, int], kind: str) -> None:
    computed, expected, largest = attended(variant, shape, kind)
    error = np.abs(computed - expected).max() / largest
    # Roundings of scores, exponentials and sums mostly cancel: some 2e-7 was measured.
    in_float32 = 16 * ROUNDING
    if variant is None or not variant.dot or kind != "BF16":
        assert error <= in_float32
    elif shape[0] > 1:
        # Scaled queries are rounded, which moves scores of up to some 5, and so are exponentials:
        # up to 1.2e-3 was measured.
        assert in_float32 < error <= 2 * BFLOAT_ROUNDING


@every_variant
@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_the_number_of_threads_changes_nothing(variant: Variant, kind: str) -> None:
    alone, *_ = attended(variant, (130, 2, 72), kind, threads=1)
    together, *_ = attended(variant, (130, 2, 72), kind, threads=3)
    np.testing.assert_array_equal(alone, together)


def test_programs_that_contradict_themselves() -> None:
    b = EncoderBuilder("probe", rows=9)
    x = b.input(8)
    contradictions: list[Callable[[], Value]] = [
        lambda: b.pixel_shuffle(x, 2),
        lambda: b.linear(x, "w", 4, shape=(4, 7)),
        lambda: b.attend_all(x, x, x, heads=3, scale=1.0),
        lambda: b.add(x, b.linear(x, "w4", 4)),
        lambda: b.add_table(x, "w4"),
        # As wide as another value, of other rows.
        lambda: b.add(b.linear(b.pixel_shuffle(x, 3), "w5", 8), x),
    ]
    for wrong in contradictions:
        with pytest.raises(ProgramError):
            wrong()
    shuffle = PixelShuffle(Value(1, 72), x, 3, 3)
    for operations in ((), (shuffle,), (b.build().operations[0], shuffle, shuffle)):
        with pytest.raises(ProgramError):
            EncoderProgram("probe", operations, {}, 9)


@either
@pytest.mark.parametrize("width", [7, 20, 147])
def test_what_another_tile_left_is_not_read(variant: Variant | None, width: int) -> None:
    """Of values whose columns others use: a first value of no whole vectors, and a NaN in one."""
    random = np.random.default_rng(width)
    x = random.normal(size=(16, width)).astype(np.float32)
    weights = {
        "n.weight": random.normal(size=width), "n.bias": random.normal(size=width),
        "w": random.normal(size=(48, width)), "v": random.normal(size=(width, 48)),
    }  # fmt: skip

    def build(b: EncoderBuilder, first: Value) -> Value:
        normed = b.layer_norm(first, "n", eps=1e-6)
        wide = b.linear(normed, "w", 48)
        return b.add(b.linear(wide, "v", width), normed)

    expected = encoded(None, x, build, weights)
    np.testing.assert_allclose(encoded(variant, x, build, weights), expected, atol=2e-4)
    b = EncoderBuilder("probe", rows=len(x))
    build(b, b.input(width))
    tensors = {name: float_tensor(each, "F32", name) for name, each in weights.items()}
    if variant is not None:
        with tape_encoder(b.build(), tensors, LaneOptions(context=1), variant) as encoder:
            fine = encoder.encode(x)
            encoder.encode(np.full_like(x, np.nan))
            np.testing.assert_array_equal(encoder.encode(x), fine)


@either
@pytest.mark.parametrize("heads", [(1, 8), (8, 1)], ids=str)
def test_attention_of_several_sizes(variant: Variant | None, heads: tuple[int, int]) -> None:
    x = np.random.default_rng(3).normal(size=(16, 64)).astype(np.float32)

    def build(b: EncoderBuilder, value: Value) -> Value:
        for count in heads:
            value = b.attend_all(value, value, value, heads=count, scale=0.125)
        return value

    # With dot products of bfloat16, what goes into each of the two is rounded so.
    roundings = 8 * BFLOAT_ROUNDING if variant is not None and variant.dot else 1e-5
    expected = encoded(None, x, build)
    np.testing.assert_allclose(
        encoded(variant, x, build), expected, rtol=0, atol=roundings * np.abs(expected).max()
    )
