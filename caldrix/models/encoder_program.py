"""A vision tower as data: operations over the patches of one tile, from rows to features.

An EncoderProgram is to an encoder what a Program is to an executor. It keeps nothing from one call
to the next: rows go in, features come out. Every value is a float32 matrix with a row for each
patch; after a `PixelShuffle` there are fewer, wider rows. What both kinds of program can do is the
same operation in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

from attrs import frozen

from caldrix.models.program import Activation, Add, Linear, ProgramError, Value, inputs


@frozen
class Input:
    """The rows that the encoder is given; the first operation."""

    out: Value


@frozen
class LayerNorm:
    """``out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias`` over the width.

    The variance is the mean of squares, not an estimate. Formula: Ba, Kiros and Hinton, 2016.
    """

    out: Value
    x: Value
    weight: str
    bias: str
    eps: float


@frozen
class Activate:
    """``out = activation(x)``."""

    out: Value
    x: Value
    activation: Activation


@frozen
class AddTable:
    """``out = x + weight``; the weight has a row for each of ``x``."""

    out: Value
    x: Value
    weight: str


@frozen
class AttendAll:
    """Softmax attention of every row to every row, none hidden and nothing kept.

    ``q``, ``k``, ``v`` and ``out`` are ``[rows, heads * head_dim]``.
    """

    out: Value
    q: Value
    k: Value
    v: Value
    heads: int
    scale: float


@frozen
class PixelShuffle:
    """Squares of ``factor * factor`` neighbouring rows become one row (Shi et al., 2016, inverted).

    ``x`` is a picture of ``side * side`` rows, row by row. ``out`` has ``(side / factor) ** 2``
    rows, each the square's rows one after another: ``out.width = factor**2 * x.width``.
    """

    out: Value
    x: Value
    side: int
    factor: int


EncoderOperation: TypeAlias = (
    Input | LayerNorm | Linear | Activate | Add | AddTable | AttendAll | PixelShuffle
)


@frozen
class EncoderProgram:
    """Operations in order, and the shape of every weight they name.

    The weight of a `Linear` may have more than two dimensions, as a convolution over patches has
    that don't overlap: it is taken as ``[out.width, x.width]``.
    """

    family: str
    operations: tuple[EncoderOperation, ...]
    weights: Mapping[str, tuple[int, ...]]
    rows: int
    """Rows that go in: patches of a tile."""

    def __attrs_post_init__(self) -> None:
        if not self.operations or not isinstance(self.operations[0], Input):
            raise ProgramError("the first operation must be Input")
        written: set[Value] = set()
        for operation in self.operations:
            for value in inputs(operation):
                if value not in written:
                    raise ProgramError(f"{operation} reads {value} before it is written")
            if operation.out in written:
                raise ProgramError(f"{operation} writes {operation.out} a second time")
            written.add(operation.out)

    @property
    def width(self) -> int:
        """Of the rows that go in."""
        return self.operations[0].out.width

    @property
    def features(self) -> tuple[int, int]:
        """Rows and columns of what comes out."""
        rows = self.rows
        for operation in self.operations:
            if isinstance(operation, PixelShuffle):
                rows //= operation.factor**2
        return rows, self.operations[-1].out.width


class EncoderBuilder:
    """Writes an EncoderProgram one operation at a time, checking widths and rows."""

    def __init__(self, family: str, *, rows: int) -> None:
        self._family = family
        self._first_rows = rows
        self._rows = rows
        self._operations: list[EncoderOperation] = []
        self._rows_of: list[int] = []
        """Of each operation's result."""
        self._weights: dict[str, tuple[int, ...]] = {}

    def input(self, width: int) -> Value:
        """The rows that the encoder is given."""
        return self._append(Input(self._value(width)))

    def layer_norm(self, x: Value, name: str, *, eps: float) -> Value:
        """Layer norm with the weight and the bias of ``name``."""
        weight, bias = f"{name}.weight", f"{name}.bias"
        for each in (weight, bias):
            self._use(each, (x.width,))
        return self._append(LayerNorm(self._value(x.width), x, weight, bias, eps))

    def linear(
        self,
        x: Value,
        weight: str,
        width: int,
        *,
        bias: str | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Value:
        """A projection to ``width``; ``shape`` is the weight's, where it is no matrix."""
        shape = (width, x.width) if shape is None else shape
        if shape[0] != width or math.prod(shape[1:]) != x.width:
            raise ProgramError(f"{weight} {shape} is no projection of {x.width} to {width}")
        self._use(weight, shape)
        if bias is not None:
            self._use(bias, (width,))
        return self._append(Linear(self._value(width), x, weight, bias))

    def activate(self, x: Value, activation: Activation) -> Value:
        """``activation(x)``."""
        return self._append(Activate(self._value(x.width), x, activation))

    def add(self, a: Value, b: Value) -> Value:
        """``a + b``."""
        self._same_shape(a, b)
        return self._append(Add(self._value(a.width), a, b))

    def add_table(self, x: Value, weight: str) -> Value:
        """Adds a row of ``weight`` to each row."""
        self._use(weight, (self._rows, x.width))
        return self._append(AddTable(self._value(x.width), x, weight))

    def attend_all(self, q: Value, k: Value, v: Value, *, heads: int, scale: float) -> Value:
        """Attention of every row to every row."""
        self._same_shape(q, k)
        self._same_shape(q, v)
        if heads < 1 or q.width % heads:
            raise ProgramError(f"{q.width} does not divide into {heads} heads")
        return self._append(AttendAll(self._value(q.width), q, k, v, heads, scale))

    def pixel_shuffle(self, x: Value, factor: int) -> Value:
        """Squares of ``factor * factor`` rows of a square picture become one row."""
        side = math.isqrt(self._rows)
        if side * side != self._rows or factor < 1 or side % factor:
            raise ProgramError(f"{self._rows} rows don't divide into squares of {factor}")
        self._rows //= factor**2
        return self._append(PixelShuffle(self._value(x.width * factor**2), x, side, factor))

    def build(self) -> EncoderProgram:
        """The program, whose features are the last operation's."""
        return EncoderProgram(
            self._family,
            tuple(self._operations),
            MappingProxyType(dict(self._weights)),
            self._first_rows,
        )

    def _value(self, width: int) -> Value:
        return Value(len(self._operations), width)

    def _append(self, operation: EncoderOperation) -> Value:
        self._operations.append(operation)
        self._rows_of.append(self._rows)
        return operation.out

    def _use(self, weight: str, shape: tuple[int, ...]) -> None:
        if self._weights.setdefault(weight, shape) != shape:
            raise ProgramError(f"{weight} is used as {self._weights[weight]} and as {shape}")

    def _same_shape(self, a: Value, b: Value) -> None:
        if a.width != b.width:
            raise ProgramError(f"widths differ: {a.width} and {b.width}")
        rows = self._rows_of[a.index], self._rows_of[b.index]
        if rows[0] != rows[1]:
            raise ProgramError(f"rows differ: {rows[0]} and {rows[1]}")
