"""Runs an EncoderProgram in float32 with numpy: the reference for every faster kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
from threadpoolctl import threadpool_limits

from caldrix.models.encoder_program import (
    Activate,
    AddTable,
    AttendAll,
    EncoderOperation,
    EncoderProgram,
    Input,
    LayerNorm,
    PixelShuffle,
)
from caldrix.models.lane import LaneError, LaneLost, LaneOptions
from caldrix.models.program import Add, Linear, inputs
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import aligned
from caldrix_cpu.memory import Needs, available_memory, require_memory
from caldrix_cpu.numpy_kernels import ACTIVATIONS

Compute: TypeAlias = Callable[..., Float32]
"""An operation's result of its inputs, in the order of its fields."""


class NumpyEncoder:
    """See `caldrix.models.lane.Encoder`."""

    def __init__(self, program: EncoderProgram, weights: Mapping[str, Tensor]) -> None:
        self.weight_bytes = weight_bytes(program)
        self._program = program
        self._kernels: list[Compute] | None = [
            _kernel(operation, weights) for operation in program.operations
        ]

    def encode(self, rows: Float32) -> Float32:
        """The features; a fresh array."""
        if self._kernels is None:
            raise LaneLost("the encoder's block was left; its memory is gone")
        check_rows(self._program, rows)
        operations = self._program.operations
        last_use = {value: index for index, each in enumerate(operations) for value in inputs(each)}
        values = {operations[0].out: rows}
        # exp overflows to infinity in an activation whose value is then exactly the limit, zero.
        with np.errstate(over="ignore"):
            for index, (operation, kernel) in enumerate(
                zip(operations[1:], self._kernels[1:], strict=True), start=1
            ):
                read = inputs(operation)
                values[operation.out] = kernel(*(values[value] for value in read))
                for value in set(read):
                    if last_use[value] == index:
                        del values[value]
        return values[operations[-1].out]

    def leave(self) -> None:
        """Ends its use: its weights go."""
        self._kernels = None


@contextmanager
def numpy_encoder(
    program: EncoderProgram, weights: Mapping[str, Tensor], options: LaneOptions
) -> Iterator[NumpyEncoder]:
    """An encoder that holds the decoded weights while the block lasts.

    ``options.threads`` bounds the threads of numpy's BLAS, for the whole process. Raises
    LaneUnavailable for a tower that memory can't hold.
    """
    needs = Needs(weight_bytes(program), lambda context: 0, "in float32")
    require_memory(needs, options, available_memory())
    encoder = NumpyEncoder(program, weights)
    with threadpool_limits(options.threads, user_api="blas"):
        try:
            yield encoder
        finally:
            encoder.leave()


def weight_bytes(program: EncoderProgram) -> int:
    """Bytes of a program's weights in float32."""
    return sum(4 * math.prod(shape) for shape in program.weights.values())


def check_rows(program: EncoderProgram, rows: Float32) -> None:
    """Raises LaneError for rows that are not the program's."""
    expected = (program.rows, program.width)
    if rows.shape != expected or rows.dtype != np.float32:
        raise LaneError(
            f"an encoder of float32 rows {expected} was given {rows.dtype} {rows.shape}"
        )


def shuffled(x: Float32, operation: PixelShuffle) -> Float32:
    """The rows of ``x`` as a `PixelShuffle` makes them."""
    factor, count = operation.factor, operation.side // operation.factor
    squares = x.reshape(count, factor, count, factor, operation.x.width).transpose(0, 2, 1, 3, 4)
    return squares.reshape(count**2, operation.out.width)


def _kernel(operation: EncoderOperation, weights: Mapping[str, Tensor]) -> Compute:
    match operation:
        case Input():
            return lambda: np.empty((0, operation.out.width), np.float32)
        case Linear():
            return _linear(operation, weights)
        case LayerNorm():
            return _layer_norm(operation, weights)
        case Activate():
            return ACTIVATIONS[operation.activation]
        case Add():
            return np.add
        case AddTable():
            table = weights[operation.weight].to_float32()
            return lambda x: np.add(x, table)
        case AttendAll():
            return lambda q, k, v: _attend_all(operation, q, k, v)
        case PixelShuffle():
            return lambda x: shuffled(x, operation)


def _linear(operation: Linear, weights: Mapping[str, Tensor]) -> Compute:
    weight = aligned.empty((operation.x.width, operation.out.width))
    aligned.decode_into(weight.T, weights[operation.weight].as_matrix())
    if operation.bias is None:
        return lambda x: x @ weight
    bias = weights[operation.bias].to_float32()
    return lambda x: x @ weight + bias


def _layer_norm(operation: LayerNorm, weights: Mapping[str, Tensor]) -> Compute:
    weight, bias = (weights[name].to_float32() for name in (operation.weight, operation.bias))
    eps = np.float32(operation.eps)

    def normalise(x: Float32) -> Float32:
        centred = x - x.mean(axis=1, keepdims=True)
        variance = np.vecdot(centred, centred) / np.float32(operation.x.width)
        out: Float32 = centred / np.sqrt(variance + eps)[:, None] * weight + bias
        return out

    return normalise


def _attend_all(operation: AttendAll, q: Float32, k: Float32, v: Float32) -> Float32:
    """A head at a time: scores of all heads together would be the largest array by far."""
    rows, heads = len(q), operation.heads
    out = np.empty(q.shape, np.float32)
    queries, keys, values, results = (each.reshape(rows, heads, -1) for each in (q, k, v, out))
    for head in range(heads):
        scores = queries[:, head] @ keys[:, head].T * np.float32(operation.scale)
        scores -= scores.max(axis=1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=1, keepdims=True)
        results[:, head] = scores @ values[:, head]
    return out
