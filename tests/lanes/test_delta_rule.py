"""The delta rule and the convolution against their formulas in float64, by every kind of kernel.

Float32 keeps 24 bits and a token's result is a sum over all tokens before it. Against the largest
result errors of up to 4e-7 were seen over 200 tokens, by numpy as by every compiled kind; the
tolerance leaves a factor of twenty, and still sees the eps of a query or key that is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.builder import ProgramBuilder
from caldrix.models.lane import Executor, LaneOptions, Slice
from caldrix.models.program import Activation, Program, ProgramError, Value
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.numpy_delta_rule import CHUNK
from caldrix_cpu.numpy_executor import numpy_executor
from caldrix_cpu.variants import VARIANTS
from tests.support.compiled import EXECUTABLE, Array, feed, float_tensor, named

Float64 = npt.NDArray[np.float64]
TOLERANCE = 1e-5
EXACT: dict[Activation, Callable[[Float64], Float64]] = {
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.GELU_TANH: lambda x: (
        x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    ),
    Activation.SIGMOID: lambda x: 1 / (1 + np.exp(-x)),
}
CONTEXT = 300
EPS = 1e-6


@frozen
class Rule:
    """Sizes of a delta rule, and how its weights are stored."""

    key_heads: int = 2
    heads: int = 2
    key_dim: int = 8
    value_dim: int = 8
    in_log: bool = True
    tiled: bool = False

    @property
    def widths(self) -> tuple[int, ...]:
        """Of queries, keys, values, decays and strengths."""
        keys = self.key_heads * self.key_dim
        return keys, keys, self.heads * self.value_dim, self.heads, self.heads

    def exact(self, inputs: Float64, rates: Float64, biases: Float64) -> Float64:
        """The published recurrence, in its own order."""
        q, k, v, decay, strength = np.split(inputs, np.cumsum(self.widths)[:-1], axis=1)
        group = self.heads // self.key_heads
        out = np.empty((len(inputs), self.heads, self.value_dim))
        for head in range(self.heads):
            key_head = head % self.key_heads if self.tiled else head // group
            of_keys = slice(key_head * self.key_dim, (key_head + 1) * self.key_dim)
            of_values = slice(head * self.value_dim, (head + 1) * self.value_dim)
            rate = np.exp(rates[head]) if self.in_log else -rates[head]
            state = np.zeros((self.key_dim, self.value_dim))
            for token in range(len(inputs)):
                query, key = (
                    each[token, of_keys] / np.sqrt((each[token, of_keys] ** 2).sum() + EPS)
                    for each in (q, k)
                )
                softplus = np.logaddexp(0, decay[token, head] + biases[head])
                state = np.exp(-rate * softplus) * state
                beta = 1 / (1 + np.exp(-strength[token, head]))
                added = beta * (v[token, of_values] - state.T @ key)
                state = state + np.outer(key, added)
                out[token, head] = state.T @ (query * self.key_dim**-0.5)
        return out.reshape(len(inputs), -1)

    def program(self, tokens: int) -> Program:
        """Reads token ``t``'s inputs as row ``t`` of the embedding; its logits are the result."""
        b = ProgramBuilder("rule", vocab_size=max(tokens, self.widths[2]), max_context=CONTEXT)
        y = self.computed(b, b.embed("inputs", sum(self.widths)))
        return b.logits(b.select(y), "identity")

    def computed(self, b: ProgramBuilder, x: Value) -> Value:
        """The result for inputs that are columns of ``x``."""
        starts = [0, *np.cumsum(self.widths)[:-1].tolist()]
        parts = [b.part(x, start, width) for start, width in zip(starts, self.widths, strict=True)]
        q, k, v, decay, strength = parts
        return b.delta_rule(
            (q, k, v), decay, strength, rate="rate", rate_bias="bias", key_heads=self.key_heads,
            scale=self.key_dim**-0.5, eps=EPS, in_log=self.in_log, tiled=self.tiled,
        )  # fmt: skip

    def example(self, tokens: int, seed: int) -> tuple[Array, Array, Array]:
        """Random inputs, rates and biases."""
        random = np.random.default_rng(seed)
        inputs = random.standard_normal((tokens, sum(self.widths))).astype(np.float32)
        rates = random.uniform(-4, 1, self.heads).astype(np.float32)
        biases = random.standard_normal(self.heads).astype(np.float32)
        return inputs, rates if self.in_log else -np.exp(rates), biases


RULES = (
    Rule(),
    Rule(heads=6, value_dim=12),
    Rule(key_heads=1, heads=3, key_dim=16, in_log=False),
    Rule(heads=4, value_dim=5, in_log=False, tiled=True),
    # Tiles of 16 that come in pairs, and one without.
    Rule(key_heads=3, heads=3, key_dim=20, value_dim=37),
    Rule(heads=4, key_dim=1, value_dim=48, tiled=True),
    # One of a published model's heads, and what another reads beside it.
    Rule(key_heads=1, heads=2, key_dim=128, value_dim=128),
)
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7)
KERNELS = ("numpy", *map(named, EXECUTABLE))
by_every_kind = pytest.mark.parametrize("kernels", KERNELS)


def executor(
    program: Program, arrays: dict[str, npt.NDArray[Any]], kernels: str, *, threads: int = 1
) -> AbstractContextManager[Executor]:
    """With three rows. Compiled kernels run every operation."""
    tensors = {}
    for name, shape in program.weights.items():
        values = np.zeros(shape, np.float32)
        given = np.eye(shape[0], shape[1]) if name.startswith("identity") else arrays[name]
        values[: len(given)] = given
        tensors[name] = float_tensor(values, name=name)
    options = LaneOptions(context=CONTEXT, rows=3, threads=threads)
    if kernels == "numpy":
        return numpy_executor(program, tensors, options)
    return tape_executor(program, tensors, options, VARIANTS[kernels])


def results(
    rule: Rule, inputs: Array, rates: Array, biases: Array, kernels: str, cuts: Sequence[int] = ()
) -> Array:
    program = rule.program(len(inputs))
    arrays = {"inputs": inputs, "rate": rates, "bias": biases}
    with executor(program, arrays, kernels) as running:
        return feed(running, range(len(inputs)), cuts)[:, : rule.widths[2]]


def in_float64(*arrays: Array) -> Iterator[Float64]:
    return (array.astype(np.float64) for array in arrays)


def assert_exact(computed: Array, exact: Float64) -> None:
    assert np.isfinite(computed).all()
    assert np.abs(computed - exact).max() < TOLERANCE * np.abs(exact).max()


@given(
    rule=st.sampled_from(RULES),
    length=st.sampled_from(LENGTHS),
    cuts=st.lists(st.integers(1, LENGTHS[-1] - 1), max_size=5, unique=True),
    kernels=st.sampled_from(KERNELS),
    seed=st.integers(0, 99),
)
@settings(max_examples=80, deadline=None)
def test_the_delta_rule(rule: Rule, length: int, cuts: list[int], kernels: str, seed: int) -> None:
    example = rule.example(length, seed)
    inside = sorted(cut for cut in cuts if cut < length)
    assert_exact(results(rule, *example, kernels, inside), rule.exact(*in_float64(*example)))


@by_every_kind
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_every_size(rule: Rule, kernels: str) -> None:
    example = rule.example(LENGTHS[-1], seed=1)
    computed = results(rule, *example, kernels)
    exact = rule.exact(*in_float64(*example))
    assert_exact(computed, exact)
    assert_exact(computed, results(rule, *example, "numpy").astype(np.float64))


@pytest.mark.parametrize("kernels", KERNELS[1:])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_any_slices_company_and_threads_give_the_same_bits(rule: Rule, kernels: str) -> None:
    """Two rows side by side in slices of all sizes, and one that begins anew each time."""
    inputs, rates, biases = rule.example(CONTEXT, seed=2)
    program, arrays = rule.program(CONTEXT), {"inputs": inputs, "rate": rates, "bias": biases}
    with executor(program, arrays, kernels) as alone:
        expected = feed(alone, range(100), range(1, 100))
        other = feed(alone, range(100, 200), row=1)
    for threads in (1, 3):
        with executor(program, arrays, kernels, threads=threads) as running:
            at = 0
            for count in (3, 1, 1, 40, 32, 23):
                step = [
                    Slice(0, at, np.arange(at, at + count), count),
                    Slice(2, 0, np.arange(count), count),
                    Slice(1, at, np.arange(100 + at, 100 + at + count), count),
                ]
                logits = running.step(step)
                np.testing.assert_array_equal(logits[:count], expected[at : at + count])
                np.testing.assert_array_equal(logits[count:][:count], expected[:count])
                np.testing.assert_array_equal(logits[2 * count :], other[at : at + count])
                at += count


@pytest.mark.parametrize("rate", [-30.0, 0.0, 6.0], ids=["keeps all", "usual", "forgets all"])
@pytest.mark.parametrize("strength", [-40.0, 0.0, 40.0], ids=["never", "half", "always"])
@by_every_kind
def test_the_same_key_again_and_again(rate: float, strength: float, kernels: str) -> None:
    """Where sums of powers of the chunk's system would have terms of 2**60 that cancel."""
    rule = Rule()
    random = np.random.default_rng(1)
    inputs = random.standard_normal((200, sum(rule.widths))).astype(np.float32)
    inputs[:, 16:32] = inputs[0, 16:32]
    inputs[100:, 16:32] = 0
    inputs[:, -2:] = strength
    rates, biases = np.full(2, rate, np.float32), np.zeros(2, np.float32)
    exact = rule.exact(*in_float64(inputs, rates, biases))
    if strength < 0:
        # Nothing is ever written that float32 could hold beside 1.
        assert np.abs(results(rule, inputs, rates, biases, kernels)).max() < 1e-12
        return
    assert_exact(results(rule, inputs, rates, biases, kernels), exact)


@by_every_kind
def test_decays_and_strengths_of_all_sizes(kernels: str) -> None:
    """A head for each: what the first token wrote, as the second reads it."""
    rule = Rule(key_heads=1, heads=256, key_dim=16, value_dim=1)
    inputs, _, biases = rule.example(2, seed=3)
    values, decays, strengths = inputs[:, 32:288], inputs[:, 288:544], inputs[:, 544:]
    values[:] = 1
    decays[:] = np.linspace(-110, 110, 256) - biases
    strengths[:] = np.linspace(-90, 90, 256)[None, ::-1]
    rates = np.linspace(-3, 1, 256, dtype=np.float32)
    exact = rule.exact(*in_float64(inputs, rates, biases))
    computed = results(rule, inputs, rates, biases, kernels)
    # A decay's logarithm, up to 87 for what float32 holds, is rounded thrice before it is an
    # exponent: its error is relative there. What is under 1e-35 is nothing beside any other value.
    assert (np.abs(computed - exact) <= 1e-35 + 3 * 87 * 2.0**-24 * np.abs(exact)).all()


@pytest.mark.parametrize("spoilt", ["query", "key", "value", "decay", "strength"])
@pytest.mark.parametrize("kernels", KERNELS[1:])
def test_what_is_not_a_number_stays_so(spoilt: str, kernels: str) -> None:
    """And reaches no token before it; numpy's products of matrices take it to a whole chunk."""
    rule = Rule()
    inputs, rates, biases = rule.example(6, seed=4)
    column = {"query": 0, "key": 16, "value": 32, "decay": 48, "strength": 50}[spoilt]
    inputs[2, column] = np.nan
    computed = results(rule, inputs, rates, biases, kernels, cuts=(4,))
    # A query is its own token's alone; all else stays in the state.
    after = spoilt != "query"
    assert np.isnan(computed).any(axis=1).tolist() == [False, False, True, after, after, after]


@by_every_kind
def test_what_lay_past_a_result_is_no_part_of_it(kernels: str) -> None:
    """A norm reads whole vectors; here the result lies where the embedding was."""
    rule = Rule(heads=4, value_dim=5)
    inputs, rates, biases = rule.example(20, seed=5)
    b = ProgramBuilder("norm", vocab_size=20, max_context=CONTEXT)
    x = b.linear(b.embed("inputs", sum(rule.widths)), "identity.inputs", sum(rule.widths))
    y = b.rms_norm(rule.computed(b, x), "norm", eps=EPS)
    program = b.logits(b.select(b.add(y, y)), "identity")
    arrays = {"inputs": inputs, "rate": rates, "bias": biases, "norm": np.ones(20, np.float32)}
    exact = rule.exact(*in_float64(inputs, rates, biases))
    normed = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + EPS)
    with executor(program, arrays, kernels) as running:
        assert_exact(feed(running, range(20), (1, 2, 12)), 2 * normed)


@pytest.mark.parametrize(("taps", "width"), [(1, 12), (2, 12), (4, 96), (7, 1000)])
@pytest.mark.parametrize("activation", Activation)
@by_every_kind
def test_a_convolution_sees_the_last_tokens_and_zeros_before_the_first(
    taps: int, width: int, activation: Activation, kernels: str
) -> None:
    """Through a norm over the whole width, which a column more would change."""
    random = np.random.default_rng(taps)
    inputs = random.standard_normal((40, width)).astype(np.float32)
    weight = random.standard_normal((width, taps)).astype(np.float32)
    padded = np.concatenate([np.zeros((taps - 1, width)), inputs])
    summed = np.array(
        [(weight.T.astype(np.float64) * padded[t : t + taps]).sum(axis=0) for t in range(40)]
    )
    activated = EXACT[activation](summed)
    expected = activated / np.sqrt((activated**2).mean(axis=1, keepdims=True) + EPS)
    b = ProgramBuilder("convolution", vocab_size=max(40, width), max_context=CONTEXT)
    y = b.convolve(b.embed("inputs", width), "weight", (width, taps), activation=activation)
    y = b.rms_norm(y, "norm", eps=EPS)
    program = b.logits(b.select(b.add(y, y)), "identity")
    assert [state.shape for state in program.states] == [(taps - 1, width)]
    arrays: dict[str, npt.NDArray[Any]] = {
        "inputs": inputs,
        "weight": weight,
        "norm": np.ones(width),
    }
    with executor(program, arrays, kernels, threads=2) as running:
        for cuts in ((), (1, 2, 3, 20), tuple(range(1, 40))):
            computed = feed(running, range(40), cuts)[:, :width]
            assert_exact(computed, 2 * expected)


@by_every_kind
@pytest.mark.parametrize(("width", "start", "columns", "groups"), [(24, 3, 4, 3), (120, 7, 33, 3)])
def test_a_part_is_the_same_columns_of_each_group(
    width: int, start: int, columns: int, groups: int, kernels: str
) -> None:
    inputs = np.arange(40 * width, dtype=np.float32).reshape(40, width)
    b = ProgramBuilder("part", vocab_size=max(40, width), max_context=CONTEXT)
    y = b.part(b.embed("inputs", width), start, columns, groups=groups)
    with executor(b.logits(b.select(y), "identity"), {"inputs": inputs}, kernels) as running:
        computed = feed(running, range(40), (1, 2, 20))[:, : groups * columns]
    each = np.arange(groups)[:, None] * (width // groups) + start + np.arange(columns)
    np.testing.assert_array_equal(computed, inputs[:, each.ravel()])


def test_sizes_that_contradict_each_other_are_the_familys_fault() -> None:
    b = ProgramBuilder("wrong", vocab_size=4, max_context=CONTEXT)
    x = b.embed("inputs", 24)
    with pytest.raises(ProgramError, match="columns 5 to 9 are no part of 24/3"):
        b.part(x, 5, 4, groups=3)
    with pytest.raises(ProgramError, match="does not convolve 24 columns"):
        b.convolve(x, "weight", (12, 4), activation=Activation.SILU)
    heads = b.part(x, 0, 3)
    with pytest.raises(ProgramError, match="3 does not divide into 2 parts"):
        b.delta_rule((x, x, x), heads, heads, rate="r", rate_bias="b", key_heads=2, scale=1, eps=1)
