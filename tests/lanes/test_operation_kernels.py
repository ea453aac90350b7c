"""Every operation but the products, through programs of a few operations, against float64.

A program ends with an identity matrix, so that its logits are the value under test, exactly. Each
tolerance is that of float32 for the sum in question: the number of roundings times ``2**-24``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from attrs import frozen

from caldrix.models.builder import ProgramBuilder
from caldrix.models.program import Activation, KvCache, Value
from caldrix.weights.tensor import Tensor
from caldrix_cpu.variants import Variant
from tests.support.compiled import (
    EXECUTABLE,
    Array,
    compiled,
    feed,
    float_tensor,
    named,
    random_tensor,
)
from tests.support.products import in_bfloat16, in_float32, packed, product, quantized

Float64 = npt.NDArray[np.float64]
ROUNDING = 2.0**-24
every_variant = pytest.mark.parametrize("variant", EXECUTABLE, ids=named)


def probe(
    variant: Variant,
    embedding: npt.NDArray[np.floating],
    build: Callable[[ProgramBuilder, Value], Value],
    weights: Mapping[str, npt.NDArray[np.floating]] | None = None,
    *,
    tokens: Sequence[int] | None = None,
    cuts: Sequence[int] = (),
    context: int = 1024,
    kv_dtype: str = "f32",
) -> Array:
    """The value that ``build`` makes of the embedding, for each token of a sequence.

    The value is as wide as the embedding has rows.
    """
    vocab, width = embedding.shape
    b = ProgramBuilder("probe", vocab_size=vocab, max_context=context)
    value = build(b, b.embed("embedding", width))
    program = b.logits(b.select(value), "identity")
    arrays = {"embedding": embedding, "identity": np.eye(vocab), **(weights or {})}
    tensors: dict[str, Tensor] = {
        name: float_tensor(array, name=name) for name, array in arrays.items()
    }
    with compiled(
        program, tensors, context=context, kv_dtype=kv_dtype, variant=variant
    ) as executor:
        assert not executor.by_numpy
        return feed(executor, range(vocab) if tokens is None else tokens, cuts)


def random(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def arguments() -> Array:
    """Square: everything from -100 to 100 densely, every magnitude, and both ends."""
    magnitudes = np.exp(np.linspace(np.log(1e-38), np.log(3.4e38), 2000))
    values = np.linspace(-100, 100, 256**2)
    values[::16] = np.concatenate([magnitudes, -magnitudes, np.zeros(96)])
    values[1:5] = [0.0, -0.0, 3.4028235e38, -3.4028235e38]
    return values.astype(np.float32).reshape(256, 256)


def silu(x: Float64) -> Float64:
    out: Float64 = x / (1 + np.exp(-x))
    return out


def sigmoid(x: Float64) -> Float64:
    out: Float64 = 1 / (1 + np.exp(-x))
    return out


def gelu_tanh(x: Float64) -> Float64:
    out: Float64 = x / (1 + np.exp(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return out


@every_variant
@pytest.mark.parametrize(
    ("activation", "exact", "roundings"),
    [
        # The exponential, one addition, one quotient.
        (Activation.SILU, silu, 8),
        # The exponential's argument is up to 88, rounded four times, and its error is relative.
        (Activation.GELU_TANH, gelu_tanh, 8 + 4 * 88),
        (Activation.SIGMOID, sigmoid, 8),
    ],
)
def test_activations(
    variant: Variant,
    activation: Activation,
    exact: Callable[[Float64], Float64],
    roundings: int,
) -> None:
    x = arguments()

    def by_itself(b: ProgramBuilder, value: Value) -> Value:
        return b.gate(value, b.linear(value, "zero", 256, bias="one"), activation)

    def in_a_product(b: ProgramBuilder, value: Value) -> Value:
        return b.gate(b.linear(value, "a", 256), b.linear(value, "b", 256), activation)

    ones = {"zero": np.zeros((256, 256)), "one": np.ones(256)}
    computed = probe(variant, x, by_itself, ones, context=256)
    with np.errstate(over="ignore"):
        expected = exact(x.astype(np.float64))
    # Below -87 the true value is under 1e-35, which is nothing beside any other number.
    error = np.abs(computed - expected)
    assert (error <= 1e-35 + roundings * ROUNDING * np.abs(expected)).all()

    halved = {name: np.eye(256) for name in ("a", "b")}
    squares = np.where(np.abs(x) < 1e18, x, 0).astype(np.float32)
    fused = probe(variant, squares, in_a_product, halved, context=256)
    np.testing.assert_array_equal(fused, np.where(squares == x, computed, 0) * squares)


@every_variant
@pytest.mark.parametrize("activation", Activation)
def test_what_is_not_a_number_stays_so_in_every_activation(
    variant: Variant, activation: Activation
) -> None:
    x = np.ones((32, 64), np.float32)
    spoilt = np.arange(0, 32, 2)
    x[spoilt, spoilt] = np.nan

    def build(b: ProgramBuilder, value: Value) -> Value:
        return b.gate(b.part(value, 0, 32), b.part(value, 32, 32), activation)

    computed = probe(variant, x, build)
    assert np.isnan(computed).any(axis=1).tolist() == [True, False] * 16


@every_variant
@pytest.mark.parametrize(
    ("width", "groups"), [(48, 1), (40, 1), (64, 4), (96, 4), (60, 6), (40, 2)]
)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(variant: Variant, width: int, groups: int, offset: float) -> None:
    x = random(width, width) * np.exp2(np.arange(width) % 40 - 20)[:, None]
    x, weight, eps = x.astype(np.float32), random(width // groups, seed=1), 1e-5

    def normed(b: ProgramBuilder, value: Value) -> Value:
        return b.rms_norm(value, "weight", eps=eps, groups=groups, offset=offset)

    def into_a_product(b: ProgramBuilder, value: Value) -> Value:
        return b.linear(normed(b, value), "identity", width)

    def by_itself(b: ProgramBuilder, value: Value) -> Value:
        x = normed(b, value)
        return b.add(x, x)

    parts = x.astype(np.float64).reshape(width, groups, -1)
    root = np.sqrt((parts**2).mean(axis=2, keepdims=True) + eps)
    expected = (parts / root * (weight + np.float32(offset)).astype(np.float64)).reshape(x.shape)
    # A sum of at most 60 squares, a root, a quotient and two products.
    bound = 70 * ROUNDING * np.abs(expected)
    for build, factor in ((into_a_product, 1), (by_itself, 2)):
        for cuts in ((), range(1, width)):
            computed = probe(variant, x, build, {"weight": weight}, cuts=tuple(cuts))
            assert (np.abs(computed / factor - expected) <= bound).all()


@every_variant
@pytest.mark.parametrize(("heads", "dim", "pairs"), [(2, 24, 12), (3, 16, 8), (2, 20, 6)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(variant: Variant, heads: int, dim: int, pairs: int, interleaved: bool) -> None:
    width = heads * dim
    x, frequencies = random(width, width), tuple(1e4 ** (-np.arange(pairs) / pairs))
    tokens = [7 * position % width for position in range(600)]

    def build(b: ProgramBuilder, value: Value) -> Value:
        return b.rope(value, heads=heads, frequencies=frequencies, interleaved=interleaved)

    rows = x.astype(np.float64)[tokens].reshape(600, heads, dim)
    angles = np.arange(600)[:, None, None] * np.array(frequencies)
    if interleaved:
        one, other = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
    else:
        one, other = slice(0, pairs), slice(pairs, 2 * pairs)
    expected = rows.copy()
    expected[..., one] = rows[..., one] * np.cos(angles) - rows[..., other] * np.sin(angles)
    expected[..., other] = rows[..., other] * np.cos(angles) + rows[..., one] * np.sin(angles)
    for cuts in ((), (1, 2, 10, 513, 514)):
        computed = probe(variant, x, build, tokens=tokens, cuts=cuts)
        # Sine, cosine, two products and their sum.
        error = np.abs(computed - expected.reshape(600, -1))
        assert error.max() <= 5 * ROUNDING * 2 * np.abs(x).max()


@frozen
class Heads:
    """An attention, and the sequence it is computed for."""

    dim: int
    heads: int
    kv_heads: int
    window: int | None = None
    sharpness: float = 1.0
    tokens: int = 390
    cuts: tuple[int, ...] = (1, 2, 100, 101, 102, 300, 309, 310, 383)

    @property
    def widths(self) -> tuple[int, int, int]:
        """Of queries, keys and values."""
        return self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim


ATTENTIONS = (
    Heads(16, 3, 1),
    Heads(24, 5, 1, sharpness=8.0),
    Heads(64, 12, 1),
    Heads(80, 6, 2, window=130),
    Heads(16, 4, 4, window=1),
    # A ring of 768 positions, and slices longer than one run.
    Heads(16, 2, 2, window=40, tokens=960, cuts=(700, 701, 702, 767, 768, 769, 950)),
    Heads(24, 3, 1, window=128, tokens=990, cuts=(300, 980, 981, 982)),
)


@every_variant
@pytest.mark.parametrize("how", ATTENTIONS, ids=str)
@pytest.mark.parametrize("kv_dtype", ["f32", "f16"])
def test_attention(variant: Variant, how: Heads, kv_dtype: str) -> None:
    vocab = how.heads * how.dim
    scale = how.sharpness * how.dim**-0.5
    embedding = random(vocab, sum(how.widths))
    tokens = np.random.default_rng(1).integers(0, vocab, how.tokens)
    ends = np.cumsum([0, *how.widths])
    columns = np.eye(sum(how.widths))
    chosen = {
        part: columns[ends[index] : ends[index + 1]] for index, part in enumerate(("q", "k", "v"))
    }

    def build(b: ProgramBuilder, x: Value) -> Value:
        q, k, v = (b.linear(x, part, width) for part, width in zip(chosen, how.widths, strict=True))
        cache = KvCache(how.kv_heads, how.dim, how.window)
        return b.attend(q, k, v, cache, heads=how.heads, scale=scale)

    computed = probe(
        variant, embedding, build, chosen,
        tokens=tokens.tolist(), cuts=how.cuts, kv_dtype=kv_dtype,
    )  # fmt: skip
    q, k, v = np.split(embedding[tokens], ends[1:-1], axis=1)
    if kv_dtype == "f16":
        k, v = k.astype(np.float16), v.astype(np.float16)
    expected = attention(q, k, v, how, scale)
    # A score's products of q and k are rounded `dim` times, and its error becomes the weight's;
    # numbers here are within 5, and their products add up to some 100 times the scale.
    tolerance = (16 + how.dim) * ROUNDING * how.sharpness * np.abs(v).max()
    assert np.abs(computed - expected).max() <= tolerance


def attention(
    q: npt.NDArray[np.floating],
    k: npt.NDArray[np.floating],
    v: npt.NDArray[np.floating],
    how: Heads,
    scale: float,
) -> Float64:
    """The formula, in float64: ``[tokens, heads * dim]``."""
    tokens, shared = len(q), how.heads // how.kv_heads
    queries = q.astype(np.float64).reshape(tokens, how.heads, how.dim)
    keys, values = (
        np.repeat(part.astype(np.float64).reshape(tokens, how.kv_heads, how.dim), shared, axis=1)
        for part in (k, v)
    )
    scores = scale * np.einsum("ihd,jhd->hij", queries, keys)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    hidden = (distance < 0) | (distance >= (how.window or tokens))
    scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    out: Float64 = np.einsum("hij,jhd->ihd", weights, values).reshape(tokens, -1)
    return out


@every_variant
def test_values_are_kept_in_float16_rounded_to_nearest(variant: Variant) -> None:
    """A token that sees itself alone gets its own value back, as the cache kept it."""
    heads, dim = 8, 24
    width = heads * dim
    rng = np.random.default_rng(0)
    halves = rng.integers(0, 0x7BFF, width * width // 2, dtype=np.uint16).view(np.float16)
    singles = halves.astype(np.float32)
    between = (singles + np.nextafter(halves, np.float16(np.inf)).astype(np.float32)) / 2
    edges = np.array([0, -0.0, 2.0**-25, 2.0**-24, 3 * 2.0**-25, 1e-30, 6.1e-5, 65519.0])
    values = np.concatenate([between, rng.standard_normal(len(between))]).astype(np.float32)
    values[: len(edges)] = edges
    values[::3] *= -1
    values = np.where(np.abs(values) < 65520, values, 1).reshape(width, width)

    def build(b: ProgramBuilder, x: Value) -> Value:
        q, k = (b.linear(x, "zero", width) for _ in range(2))
        return b.attend(q, k, x, KvCache(heads, dim, window=1), heads=heads, scale=1.0)

    kept = probe(variant, values, build, {"zero": np.zeros((width, width))}, kv_dtype="f16")
    np.testing.assert_array_equal(kept, values.astype(np.float16).astype(np.float32))


@every_variant
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_K", "Q6_K", "BF16", "F16"])
def test_activations_are_packed_by_the_stated_rule(variant: Variant, kind: str) -> None:
    """A program's product has the bits of the kernel's with activations that are packed here."""
    columns, vocab = 256, 48
    head = random_tensor((vocab, columns), kind, seed=3)
    x = random(vocab, columns) * np.exp2(np.arange(vocab, dtype=np.float32) - 30)[:, None]
    x[3, :32] = 0
    # Halfway between two levels of a block whose largest magnitude is 127.
    x[4] = np.arange(columns) % 32 - 15.5
    x[4, ::32] = 127
    unit, name = f"matmul-{kind}", kind
    if kind == "BF16":
        unit, name = ("matmul-BF12" if variant.dot else "matmul-BF12-exact"), "BF12"
        activations = in_bfloat16(x) if variant.dot else in_float32(x)
    elif kind == "F16":
        activations = in_float32(x)
    else:
        activations = quantized(x, halves=kind == "Q6_K")
    b = ProgramBuilder("probe", vocab_size=vocab, max_context=64)
    program = b.logits(b.select(b.embed("embedding", columns)), "head")
    weights = {"embedding": float_tensor(x), "head": head}
    with compiled(program, weights, context=64, variant=variant) as executor:
        for cuts in ((), (1, 3, 6, 10)):
            computed = feed(executor, range(vocab), cuts)
            expected = product(variant, unit, packed(head, name), activations, vocab)
            np.testing.assert_array_equal(computed, expected)
