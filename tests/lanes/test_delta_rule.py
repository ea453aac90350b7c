"""The delta rule and the convolution in numpy against their formulas in float64, token by token.

Float32 keeps 24 bits and a token's result is a sum over all tokens before it; against the largest
result some 1e-6 was measured, and the tolerance leaves a factor of five to ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.lane import Executor, LaneOptions
from caldrix.models.program import Activation, Program, ProgramBuilder, ProgramError
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.numpy_delta_rule import CHUNK
from caldrix_cpu.numpy_executor import numpy_executor
from tests.support.compiled import BEST, Array, feed, float_tensor

TOLERANCE = 1e-5
CONTEXT = 300
EPS = 1e-6
Float64 = npt.NDArray[np.float64]


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
        x = b.embed("inputs", sum(self.widths))
        starts = [0, *np.cumsum(self.widths)[:-1].tolist()]
        parts = [b.part(x, start, width) for start, width in zip(starts, self.widths, strict=True)]
        q, k, v, decay, strength = parts
        y = b.delta_rule(
            (q, k, v), decay, strength, rate="rate", rate_bias="bias", key_heads=self.key_heads,
            scale=self.key_dim**-0.5, eps=EPS, in_log=self.in_log, tiled=self.tiled,
        )  # fmt: skip
        return b.logits(y, "identity")


def executor(
    program: Program, arrays: dict[str, npt.NDArray[Any]], kernels: str
) -> AbstractContextManager[Executor]:
    tensors = {}
    for name, shape in program.weights.items():
        values = np.zeros(shape, np.float32)
        given = np.eye(shape[0], shape[1]) if name == "identity" else arrays[name]
        values[: len(given)] = given
        tensors[name] = float_tensor(values, name=name)
    options = LaneOptions(context=CONTEXT, threads=1)
    if kernels == "numpy":
        return numpy_executor(program, tensors, options)
    return tape_executor(program, tensors, options, BEST)


def results(
    rule: Rule, inputs: Array, rates: Array, biases: Array, kernels: str, cuts: Sequence[int] = ()
) -> Array:
    program = rule.program(len(inputs))
    arrays = {"inputs": inputs, "rate": rates, "bias": biases}
    with executor(program, arrays, kernels) as running:
        return feed(running, range(len(inputs)), cuts)[:, : rule.widths[2]]


def assert_exact(computed: Array, exact: Float64) -> None:
    assert np.isfinite(computed).all()
    assert np.abs(computed - exact).max() < TOLERANCE * np.abs(exact).max()


RULES = (
    Rule(),
    Rule(heads=6, value_dim=12),
    Rule(key_heads=1, heads=3, key_dim=16, in_log=False),
    Rule(heads=4, value_dim=5, in_log=False, tiled=True),
)
LENGTHS = (1, 2, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7)


@given(
    rule=st.sampled_from(RULES),
    length=st.sampled_from(LENGTHS),
    cuts=st.lists(st.integers(1, LENGTHS[-1] - 1), max_size=5, unique=True),
    kernels=st.sampled_from(["numpy", "compiled"]),
    seed=st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_the_delta_rule(rule: Rule, length: int, cuts: list[int], kernels: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    inputs = random.standard_normal((length, sum(rule.widths))).astype(np.float32)
    rates = random.uniform(-4, 1, rule.heads).astype(np.float32)
    if not rule.in_log:
        rates = -np.exp(rates)
    biases = random.standard_normal(rule.heads).astype(np.float32)
    exact = rule.exact(*(each.astype(np.float64) for each in (inputs, rates, biases)))
    inside = sorted(cut for cut in cuts if cut < length)
    assert_exact(results(rule, inputs, rates, biases, kernels, inside), exact)


@pytest.mark.parametrize("rate", [-30.0, 0.0, 6.0], ids=["keeps all", "usual", "forgets all"])
@pytest.mark.parametrize("strength", [-40.0, 0.0, 40.0], ids=["never", "half", "always"])
@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
def test_the_same_key_again_and_again(rate: float, strength: float, kernels: str) -> None:
    """Where sums of powers of the chunk's system would have terms of 2**60 that cancel."""
    rule = Rule()
    random = np.random.default_rng(1)
    inputs = random.standard_normal((200, sum(rule.widths))).astype(np.float32)
    inputs[:, 16:32] = inputs[0, 16:32]
    inputs[100:, 16:32] = 0
    inputs[:, -2:] = strength
    rates, biases = np.full(2, rate, np.float32), np.zeros(2, np.float32)
    exact = rule.exact(*(each.astype(np.float64) for each in (inputs, rates, biases)))
    if strength < 0:
        # Nothing is ever written that float32 could hold beside 1.
        assert np.abs(results(rule, inputs, rates, biases, kernels)).max() < 1e-12
        return
    assert_exact(results(rule, inputs, rates, biases, kernels), exact)


@pytest.mark.parametrize("taps", [1, 2, 4])
@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
def test_a_convolution_sees_the_last_tokens_and_zeros_before_the_first(
    taps: int, kernels: str
) -> None:
    random = np.random.default_rng(taps)
    inputs = random.standard_normal((40, 12)).astype(np.float32)
    weight = random.standard_normal((12, taps)).astype(np.float32)
    padded = np.concatenate([np.zeros((taps - 1, 12)), inputs])
    summed = np.array(
        [(weight.T.astype(np.float64) * padded[t : t + taps]).sum(axis=0) for t in range(40)]
    )
    b = ProgramBuilder("convolution", vocab_size=40, max_context=CONTEXT)
    y = b.convolve(b.embed("inputs", 12), "weight", (12, taps), activation=Activation.SILU)
    program = b.logits(y, "identity")
    assert [state.shape for state in program.states] == [(taps - 1, 12)]
    for cuts in ((), (1, 2, 3, 20), tuple(range(1, 40))):
        with executor(program, {"inputs": inputs, "weight": weight}, kernels) as running:
            computed = feed(running, range(40), cuts)[:, :12]
        assert_exact(computed, summed / (1 + np.exp(-summed)))


@pytest.mark.parametrize("kernels", ["numpy", "compiled"])
def test_a_part_is_the_same_columns_of_each_group(kernels: str) -> None:
    inputs = np.arange(40 * 24, dtype=np.float32).reshape(40, 24)
    b = ProgramBuilder("part", vocab_size=40, max_context=CONTEXT)
    y = b.part(b.embed("inputs", 24), 3, 4, groups=3)
    with executor(b.logits(y, "identity"), {"inputs": inputs}, kernels) as running:
        computed = feed(running, range(40))[:, :12]
    columns = [3, 4, 5, 6, 11, 12, 13, 14, 19, 20, 21, 22]
    np.testing.assert_array_equal(computed, inputs[:, columns])


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
