"""A model as data: a list of operations over named weights and states.

A family builds a Program from its configuration; a lane compiles and runs it. The two meet only
here, so that a family knows no device and a lane no family.

Every value is a float32 matrix ``[tokens, width]``: one row for each token of a step. A value is
written by exactly one operation and only read after it, so a lane can plan its memory in one pass.
Operations that look at other tokens go through a state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
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
    """Keeps only the tokens whose logits are asked for: ``out`` is ``[wanted, width]``.

    A Program has one, and all that comes after it is of those tokens alone.
    """

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
        self._check_selection()

    def _check_selection(self) -> None:
        """Kernels after the Select have room for the wanted tokens, and no other's position."""
        kinds = [type(operation) for operation in self.operations]
        if kinds.count(Select) != 1:
            raise ProgramError(f"a Program has one Select, not {kinds.count(Select)}")
        first = kinds.index(Select)
        selected = {self.operations[first].out}
        for operation in self.operations[first + 1 :]:
            if isinstance(operation, Embed | Rope | Attend | Convolve | DeltaRule):
                raise ProgramError(f"{operation} is of all tokens and must come before the Select")
            for value in inputs(operation):
                if value not in selected:
                    raise ProgramError(f"{operation} reads {value}, which is of all tokens")
            selected.add(operation.out)


def inputs(operation: attrs.AttrsInstance) -> tuple[Value, ...]:
    """The values an operation reads, in the order of its fields."""
    return tuple(
        value
        for field in attrs.fields(type(operation))
        if field.name != "out" and isinstance(value := getattr(operation, field.name), Value)
    )
