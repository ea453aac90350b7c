"""Writes a Program: what a family calls, operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from caldrix.models.program import (
    Activation,
    Add,
    Attend,
    Convolve,
    DeltaRule,
    Embed,
    Gate,
    KvCache,
    Linear,
    Logits,
    Operation,
    Part,
    Program,
    ProgramError,
    RmsNorm,
    Rope,
    Select,
    State,
    Value,
)


class ProgramBuilder:
    """Writes a Program one operation at a time, checking widths and collecting weight shapes."""

    def __init__(self, family: str, *, vocab_size: int, max_context: int) -> None:
        self._family = family
        self._vocab_size = vocab_size
        self._max_context = max_context
        self._operations: list[Operation] = []
        self._weights: dict[str, tuple[int, ...]] = {}
        self._caches: list[KvCache] = []
        self._states: list[State] = []

    def embed(self, weight: str, width: int, *, scale: float = 1.0) -> Value:
        """The rows of ``weight [vocab, width]`` for the step's tokens."""
        self._use(weight, (self._vocab_size, width))
        return self._append(Embed(self._value(width), weight, scale))

    def rms_norm(
        self, x: Value, weight: str, *, eps: float, groups: int = 1, offset: float = 0.0
    ) -> Value:
        """RMS norm of each of ``groups`` parts of ``x``."""
        self._divides(groups, x.width)
        self._use(weight, (x.width // groups,))
        return self._append(RmsNorm(self._value(x.width), x, weight, eps, groups, offset))

    def linear(self, x: Value, weight: str, width: int, *, bias: str | None = None) -> Value:
        """A projection to ``width``."""
        self._use(weight, (width, x.width))
        if bias is not None:
            self._use(bias, (width,))
        return self._append(Linear(self._value(width), x, weight, bias))

    def rope(
        self, x: Value, *, heads: int, frequencies: Sequence[float], interleaved: bool = False
    ) -> Value:
        """Rotary position embedding of each head of ``x``."""
        self._divides(heads, x.width)
        if 2 * len(frequencies) > x.width // heads:
            raise ProgramError(
                f"{len(frequencies)} rope pairs don't fit heads of {x.width}/{heads}"
            )
        return self._append(Rope(self._value(x.width), x, heads, tuple(frequencies), interleaved))

    def attend(
        self, q: Value, k: Value, v: Value, cache: KvCache, *, heads: int, scale: float
    ) -> Value:
        """Attention over a cache of its own, which this operation adds to the program."""
        self._divides(cache.kv_heads, heads)
        expected = (heads * cache.head_dim,) + (cache.kv_heads * cache.head_dim,) * 2
        if (q.width, k.width, v.width) != expected:
            raise ProgramError(f"q, k, v are {q.width}, {k.width}, {v.width} wide, not {expected}")
        self._caches.append(cache)
        index = len(self._caches) - 1
        return self._append(Attend(self._value(q.width), q, k, v, index, heads, scale))

    def part(self, x: Value, start: int, width: int, *, groups: int = 1) -> Value:
        """``width`` columns, from ``start`` on, of each of ``groups`` parts of ``x``."""
        self._divides(groups, x.width)
        if width < 1 or not 0 <= start <= x.width // groups - width:
            raise ProgramError(
                f"columns {start} to {start + width} are no part of {x.width}/{groups}"
            )
        return self._append(Part(self._value(groups * width), x, start, groups))

    def convolve(
        self, x: Value, weight: str, shape: tuple[int, ...], *, activation: Activation
    ) -> Value:
        """A causal convolution of each column; the ``shape`` of the weight ends in its taps."""
        taps = shape[-1]
        if shape not in ((x.width, 1, taps), (x.width, taps)) or taps < 1:
            raise ProgramError(f"{weight} {shape} does not convolve {x.width} columns")
        self._use(weight, shape)
        state = self._state((taps - 1, x.width))
        return self._append(Convolve(self._value(x.width), x, weight, taps, activation, state))

    def delta_rule(
        self,
        qkv: tuple[Value, Value, Value],
        decay: Value,
        strength: Value,
        *,
        rate: str,
        rate_bias: str,
        key_heads: int,
        scale: float,
        eps: float,
        in_log: bool = True,
        tiled: bool = False,
    ) -> Value:
        """The gated delta rule, with a state of its own; heads are as many as ``decay`` is wide."""
        q, k, v = qkv
        heads = decay.width
        self._same_width(q, k)
        self._same_width(decay, strength)
        self._divides(heads, v.width)
        self._divides(key_heads, q.width)
        self._divides(key_heads, heads)
        for weight in (rate, rate_bias):
            self._use(weight, (heads,))
        state = self._state((heads, q.width // key_heads, v.width // heads))
        return self._append(
            DeltaRule(
                self._value(v.width), q, k, v, decay, strength, rate, rate_bias, state, heads,
                key_heads, scale, eps, in_log, tiled,
            )
        )  # fmt: skip

    def gate(self, gate: Value, up: Value, activation: Activation) -> Value:
        """``activation(gate) * up``."""
        self._same_width(gate, up)
        return self._append(Gate(self._value(gate.width), gate, up, activation))

    def add(self, a: Value, b: Value) -> Value:
        """``a + b``."""
        self._same_width(a, b)
        return self._append(Add(self._value(a.width), a, b))

    def select(self, x: Value) -> Value:
        """Only the tokens whose logits are asked for."""
        return self._append(Select(self._value(x.width), x))

    def logits(self, x: Value, weight: str) -> Program:
        """Ends the program with the scores of the vocabulary."""
        self._use(weight, (self._vocab_size, x.width))
        self._append(Logits(self._value(self._vocab_size), x, weight))
        return Program(
            self._family,
            tuple(self._operations),
            MappingProxyType(dict(self._weights)),
            tuple(self._caches),
            self._vocab_size,
            self._max_context,
            tuple(self._states),
        )

    def _state(self, shape: tuple[int, ...]) -> int:
        self._states.append(State(shape))
        return len(self._states) - 1

    def _value(self, width: int) -> Value:
        return Value(len(self._operations), width)

    def _append(self, operation: Operation) -> Value:
        self._operations.append(operation)
        return operation.out

    def _use(self, weight: str, shape: tuple[int, ...]) -> None:
        if self._weights.setdefault(weight, shape) != shape:
            raise ProgramError(f"{weight} is used as {self._weights[weight]} and as {shape}")

    @staticmethod
    def _divides(parts: int, width: int) -> None:
        if parts < 1 or width % parts:
            raise ProgramError(f"{width} does not divide into {parts} parts")

    @staticmethod
    def _same_width(a: Value, b: Value) -> None:
        if a.width != b.width:
            raise ProgramError(f"widths differ: {a.width} and {b.width}")
