"""A model as data: a list of operations over named weights and states.

A family builds a Program from its configuration; a lane compiles and runs it. The two meet only
here, so that a family knows no device and a lane no family.

Every value is a float32 matrix ``[tokens, width]``: one row for each token of a step. A value is
written by exactly one operation and only read after it, so a lane can plan its memory in one pass.
Operations that look at other tokens go through a state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import TypeAlias

import attrs
from attrs import frozen


@frozen
class Value:
    """The result of one operation, float32 ``[tokens, width]``."""

    index: int
    width: int


class Activation(Enum):
    """The function a gate goes through."""

    SILU = "silu"
    """``x * sigmoid(x)``."""
    GELU_TANH = "gelu_tanh"
    """The tanh approximation of GELU (Hendrycks and Gimpel, 2016)."""
    SIGMOID = "sigmoid"
    """``1 / (1 + exp(-x))``."""


@frozen
class Embed:
    """``out[t] = scale * weight[token[t]]``; the weight is ``[vocab, out.width]``."""

    out: Value
    weight: str
    scale: float = 1.0


@frozen
class RmsNorm:
    """``out = x / sqrt(mean(x**2) + eps) * (weight + offset)`` over each of ``groups`` equal parts.

    The weight is ``[x.width / groups]``: one group is a norm over the width, as many groups as
    heads is a norm over each head. Formula: Zhang and Sennrich, 2019; checkpoints that store the
    weight less one have ``offset`` 1.
    """

    out: Value
    x: Value
    weight: str
    eps: float
    groups: int = 1
    offset: float = 0.0


@frozen
class Linear:
    """``out = x @ weight.T + bias``; the weight is ``[out.width, x.width]``."""

    out: Value
    x: Value
    weight: str
    bias: str | None = None


@frozen
class Rope:
    """Rotary position embedding (Su et al., 2021) of each head.

    A head has ``out.width / heads`` dimensions. Pair ``j`` turns by ``position * frequencies[j]``
    radians; dimensions past ``2 * len(frequencies)`` pass unchanged. Pairs are ``(j, j + n)`` with
    ``n = len(frequencies)``, or ``(2j, 2j + 1)`` when ``interleaved``.
    """

    out: Value
    x: Value
    heads: int
    frequencies: tuple[float, ...]
    interleaved: bool = False


@frozen
class Attend:
    """Causal softmax attention over a KV cache, after adding this step's keys and values to it.

    ``q`` is ``[tokens, heads * head_dim]``; ``k`` and ``v`` are ``[tokens, kv_heads * head_dim]``.
    Query head ``h`` reads key/value head ``h // (heads / kv_heads)``. A token at position ``p``
    sees positions ``p`` and before; with a window ``w``, only those after ``p - w``.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    cache: int
    heads: int
    scale: float


@frozen
class Part:
    """``out`` is columns ``start`` and after of each of ``groups`` equal parts of ``x``.

    As many of each as fill ``out``: ``out.width / groups``.
    """

    out: Value
    x: Value
    start: int
    groups: int = 1


@frozen
class Convolve:
    """A causal convolution of each column with ``taps`` weights of its own, then an activation.

    ``out[t] = activation(sum over j of weight[:, j] * x[t - taps + 1 + j])``, where tokens before
    the row's first are zeros. The weight is ``[x.width, 1, taps]`` or ``[x.width, taps]``. The
    state is the last ``taps - 1`` inputs, ``[taps - 1, x.width]``.
    """

    out: Value
    x: Value
    weight: str
    taps: int
    activation: Activation
    state: int


@frozen
class DeltaRule:
    """The gated delta rule (Yang, Kautz and Hatamizadeh, 2024), a memory of keys and values.

    ``q`` and ``k`` are ``[tokens, key_heads * key_dim]``, ``v`` and ``out`` are
    ``[tokens, heads * value_dim]``, ``decay`` and ``strength`` are ``[tokens, heads]``, the weights
    ``rate`` and ``rate_bias`` are ``[heads]``. Head ``h`` reads key head
    ``h // (heads / key_heads)``, or ``h % key_heads`` where heads are ``tiled``. With ``q`` and
    ``k`` of each head as ``x / sqrt(sum(x**2) + eps)``, and ``q`` times ``scale``, a head's state
    ``S [key_dim, value_dim]`` takes each token in turn::

        S = exp(-rate * softplus(decay + rate_bias)) * S
        S = S + outer(k, sigmoid(strength) * (v - S.T @ k))
        out = S.T @ q

    The rate is ``exp(rate)`` of the weight where that is stored ``in_log``, else its negative.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    decay: Value
    strength: Value
    rate: str
    rate_bias: str
    state: int
    heads: int
    key_heads: int
    scale: float
    eps: float
    in_log: bool = True
    tiled: bool = False


@frozen
class Gate:
    """``out = activation(gate) * up``."""

    out: Value
    gate: Value
    up: Value
    activation: Activation


@frozen
class Add:
    """``out = a + b``."""

    out: Value
    a: Value
    b: Value


@frozen
class Select:
    """Keeps only the tokens whose logits are asked for: ``out`` is ``[wanted, width]``."""

    out: Value
    x: Value


@frozen
class Logits:
    """``out = x @ weight.T``, the score of every vocabulary entry; the last operation."""

    out: Value
    x: Value
    weight: str


Operation: TypeAlias = (
    Embed
    | RmsNorm
    | Linear
    | Rope
    | Attend
    | Part
    | Convolve
    | DeltaRule
    | Gate
    | Add
    | Select
    | Logits
)


@frozen
class KvCache:
    """One layer's keys and values: two matrices ``[positions, kv_heads * head_dim]`` for each row.

    With a ``window`` only the last ``window`` positions are ever read.
    """

    kv_heads: int
    head_dim: int
    window: int | None = None


@frozen
class State:
    """An operation's memory of all tokens before: a float32 array of one shape for each row.

    Zeros before a row's first token. It is of the last position computed alone, so a row that has
    one goes on from there, or begins anew.
    """

    shape: tuple[int, ...]


class ProgramError(ValueError):
    """A Program that contradicts itself; a fault of the family that built it."""


@frozen
class Program:
    """Operations in order, the shape of every weight they name, and the states they keep."""

    family: str
    operations: tuple[Operation, ...]
    weights: Mapping[str, tuple[int, ...]]
    caches: tuple[KvCache, ...]
    vocab_size: int
    max_context: int
    """Positions the model was trained for."""
    states: tuple[State, ...] = ()

    def __attrs_post_init__(self) -> None:
        written: set[Value] = set()
        for operation in self.operations:
            for value in inputs(operation):
                if value not in written:
                    raise ProgramError(f"{operation} reads {value} before it is written")
            if operation.out in written:
                raise ProgramError(f"{operation} writes {operation.out} a second time")
            written.add(operation.out)
        if not self.operations or not isinstance(self.operations[-1], Logits):
            raise ProgramError("the last operation must be Logits")


def inputs(operation: attrs.AttrsInstance) -> tuple[Value, ...]:
    """The values an operation reads, in the order of its fields."""
    return tuple(
        value
        for field in attrs.fields(type(operation))
        if field.name != "out" and isinstance(value := getattr(operation, field.name), Value)
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
