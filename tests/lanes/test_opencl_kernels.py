"""Each OpenCL kernel by itself, against numpy, in sizes that fill no tile.

A Program of one operation between an embedding and its logits is run whole: the logits of a matrix
of ones and zeros are the operation's very result. Numpy computes in float64; the tolerance is what
float32 sums of some hundred terms are off by, relative to the largest number of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from caldrix.models.builder import ProgramBuilder
from caldrix.models.lane import Features, Slice
from caldrix.models.program import Activation, KvCache, Value
from caldrix.weights.tensor import Tensor
from tests.support.compiled import Array, float_tensor, random_tensor
from tests.support.opencl import SHAPES, on_host

Exact = npt.NDArray[np.float64]
TOLERANCE = 2e-6
TOKENS = 13
shapes = pytest.mark.parametrize("shape", SHAPES)


def result_of(
    build: Callable[[ProgramBuilder, Value], Value],
    x: Array,
    weights: Mapping[str, Tensor],
    shape: str,
    cuts: Sequence[int] = (1, 3),
) -> Array:
    """What an operation makes of ``[tokens, width]``, given as features in slices' sizes."""
    tokens, width = x.shape
    b = ProgramBuilder("test", vocab_size=width, max_context=tokens)
    out = build(b, b.embed("e", width))
    b = ProgramBuilder("test", vocab_size=out.width, max_context=tokens)
    selected = b.select(build(b, b.embed("e", width)))
    program = b.logits(selected, "one")
    given = {
        **weights,
        "e": float_tensor(np.zeros((out.width, width))),
        "one": float_tensor(np.eye(out.width)),
    }
    ids = np.zeros(tokens, np.int64)
    with on_host(program, given, shape=shape, context=tokens) as executor:
        parts = []
        for first, last in pairwise((0, *cuts, tokens)):
            features = Features(np.arange(last - first), x[first:last])
            parts.append(
                executor.step([Slice(1, first, ids[first:last], last - first, features)]).copy()
            )
        return np.concatenate(parts)


def random_values(tokens: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((tokens, width)).astype(np.float32)


def assert_close(result: Array, expected: Exact) -> None:
    assert result.shape == expected.shape
    assert np.abs(result - expected).max() < TOLERANCE * np.abs(expected).max()


KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1",
         "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K")  # fmt: skip


@shapes
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind: str, shape: str) -> None:
    columns = {"F": 51, "B": 51, "Q": 96}[kind[0]] if not kind.endswith("K") else 512
    weight = random_tensor((37, columns), kind, seed=1)
    bias = np.random.default_rng(2).standard_normal(37).astype(np.float32)
    x = random_values(TOKENS, columns)
    result = result_of(
        lambda b, v: b.linear(v, "w", 37, bias="b"),
        x,
        {"w": weight, "b": float_tensor(bias)},
        shape,
    )
    given = in_16_bits(x) if kind[0] == "Q" and shape == "cpu" else x.astype(np.float64)
    assert_close(result, given @ weight.to_float32().astype(np.float64).T + bias)


def in_16_bits(x: Array) -> Exact:
    """As a CPU multiplies with quants: whole numbers of a scale that sixteen columns share."""
    parts = x.reshape(len(x), -1, 16)
    largest = np.abs(parts).max(axis=-1, keepdims=True)
    whole = np.rint(parts * (np.float32(32767) / largest)).astype(np.float64)
    rounded: Exact = (whole * (largest / np.float32(32767))).reshape(x.shape)
    return rounded


def test_columns_in_16_bits_lose_little_and_hide_nothing() -> None:
    """Zeros, the smallest and the largest numbers go through a CPU's product with quants."""
    weight = random_tensor((16, 32), "Q8_0", seed=1)
    exact = weight.to_float32().astype(np.float64).T
    x = random_values(TOKENS, 32)
    x[0] = 0.0
    x[1, ::5] *= 1e30
    x[2, :16] = 1e-38
    x[3, 7], x[4, 20] = np.nan, np.inf
    result = result_of(lambda b, v: b.linear(v, "w", 16), x, {"w": weight}, "cpu")
    assert not result[0].any()
    assert not np.isfinite(result[[3, 4]]).any()
    for token in (1, 2, *range(5, TOKENS)):
        expected = x[token].astype(np.float64) @ exact
        scale = np.abs(x[token]).max() * np.abs(exact).sum(axis=0)
        assert (np.abs(result[token] - expected) < 2**-16 * scale).all()


@shapes
def test_a_sum_after_a_product_and_projections_side_by_side(shape: str) -> None:
    a, c = random_tensor((20, 20), "F32", 1), random_tensor((20, 20), "BF16", 2)
    x = random_values(TOKENS, 20)
    weights = {"a": a, "c": c, "d": random_tensor((20, 20), "F32", 3)}

    def build(b: ProgramBuilder, v: Value) -> Value:
        first, second, third = b.linear(v, "a", 20), b.linear(v, "c", 20), b.linear(v, "d", 20)
        return b.add(b.linear(b.add(first, third), "c", 20), second)

    exact = {name: each.to_float32().astype(np.float64).T for name, each in weights.items()}
    wide = x.astype(np.float64)
    expected = (wide @ exact["a"] + wide @ exact["d"]) @ exact["c"] + wide @ exact["c"]
    assert_close(result_of(build, x, weights, shape), expected)


@shapes
@pytest.mark.parametrize(("width", "groups"), [(51, 1), (300, 1), (60, 5), (64, 4)])
def test_norms(width: int, groups: int, shape: str) -> None:
    x = random_values(TOKENS, width)
    weight = random_values(1, width // groups, seed=1)[0]
    result = result_of(
        lambda b, v: b.add(b.rms_norm(v, "n", eps=1e-5, groups=groups, offset=1.0), v),
        x, {"n": float_tensor(weight)}, shape,
    )  # fmt: skip
    parts = x.astype(np.float64).reshape(TOKENS, groups, -1)
    root = np.sqrt((parts**2).mean(axis=-1, keepdims=True) + 1e-5)
    assert_close(result, (parts / root * (weight + 1.0)).reshape(x.shape) + x)


@shapes
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_turns_some_columns_and_passes_the_others(interleaved: bool, shape: str) -> None:
    frequencies = (1.0, 0.3, 0.01)
    x = random_values(TOKENS, 30)
    result = result_of(
        lambda b, v: b.rope(v, heads=3, frequencies=frequencies, interleaved=interleaved),
        x, {}, shape,
    )  # fmt: skip
    heads = x.astype(np.float64).reshape(TOKENS, 3, 10).copy()
    pairs = [(2 * j, 2 * j + 1) if interleaved else (j, j + 3) for j in range(3)]
    expected = heads.copy()
    angles = np.arange(TOKENS)[:, None] * np.array(frequencies)
    for j, (first, second) in enumerate(pairs):
        cosine, sine = np.cos(angles[:, j, None]), np.sin(angles[:, j, None])
        expected[..., first] = heads[..., first] * cosine - heads[..., second] * sine
        expected[..., second] = heads[..., first] * sine + heads[..., second] * cosine
    assert_close(result, expected.reshape(x.shape))


ACTIVATIONS: Mapping[Activation, Callable[[Exact], Exact]] = {
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
    Activation.GELU_TANH: lambda x: (
        0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    ),
}


@shapes
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gates_and_parts(activation: Activation, shape: str) -> None:
    x = 5 * random_values(TOKENS, 3 * 21)

    def build(b: ProgramBuilder, v: Value) -> Value:
        return b.gate(b.part(v, 2, 7, groups=3), b.part(v, 14, 7, groups=3), activation)

    parts = x.astype(np.float64).reshape(TOKENS, 3, 21)
    expected = ACTIVATIONS[activation](parts[..., 2:9]) * parts[..., 14:]
    assert_close(result_of(build, x, {}, shape), expected.reshape(TOKENS, 21))


@shapes
@pytest.mark.parametrize("head_dim", [12, 16, 40])
@pytest.mark.parametrize("window", [None, 3])
def test_attention(window: int | None, head_dim: int, shape: str) -> None:
    assert_attends(TOKENS, head_dim, window, shape, cuts=(1, 3))


@shapes
@pytest.mark.parametrize("window", [None, 400])
def test_attention_over_several_segments(window: int | None, shape: str) -> None:
    """In one piece, and by a few tokens whose segments are computed side by side."""
    assert_attends(530, 12, window, shape, cuts=(500, 506, 507))


def assert_attends(
    tokens: int, head_dim: int, window: int | None, shape: str, cuts: Sequence[int]
) -> None:
    """Of six heads that share two of keys and values."""
    wide, narrow, scale = 6 * head_dim, 2 * head_dim, 0.3
    x = random_values(tokens, wide + 2 * narrow)

    def build(b: ProgramBuilder, v: Value) -> Value:
        q, k = b.part(v, 0, wide), b.part(v, wide, narrow)
        cache = KvCache(2, head_dim, window)
        return b.attend(q, k, b.part(v, wide + narrow, narrow), cache, heads=6, scale=scale)

    exact = x.astype(np.float64)
    q = exact[:, :wide].reshape(tokens, 6, head_dim)
    k, v = (
        np.repeat(part.reshape(tokens, 2, head_dim), 3, axis=1)
        for part in (exact[:, wide : wide + narrow], exact[:, wide + narrow :])
    )
    scores = scale * np.einsum("thd,shd->hts", q, k)
    behind = np.arange(tokens)[:, None] - np.arange(tokens)
    hidden = (behind < 0) | (behind >= (window or tokens))
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("hts,shd->thd", weights, v).reshape(tokens, wide)
    assert_close(result_of(build, x, {}, shape, cuts), expected)
