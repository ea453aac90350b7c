"""The numpy form of each operation, and the compilation of a Program to a list of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from attrs import frozen

from caldrix.models.lane import LaneOptions
from caldrix.models.program import (
    Activation,
    Add,
    Attend,
    Convolve,
    DeltaRule,
    Embed,
    Gate,
    Linear,
    Logits,
    Operation,
    Part,
    Program,
    RmsNorm,
    Rope,
    Select,
    Value,
    inputs,
)
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import aligned
from caldrix_cpu.numpy_attention import CacheArrays, attend
from caldrix_cpu.numpy_delta_rule import GatedDeltaRule
from caldrix_cpu.numpy_memory import RowMemory, StateArrays
from caldrix_cpu.numpy_rotation import Rotation
from caldrix_cpu.numpy_step import Step, put_features

Registers: TypeAlias = list[Float32 | None]


Run: TypeAlias = Callable[[Registers, Step], None]


@frozen(eq=False)
class Kernel:
    """One or more operations, ready to run, and the registers nobody reads after them."""

    run: Run
    dead: tuple[int, ...]


def compile_kernels(
    program: Program, weights: Mapping[str, Tensor], options: LaneOptions, memory: RowMemory
) -> list[Kernel]:
    """The kernels of a Program in order, with their weights decoded."""
    return _Compiler(program, weights, options, memory).compile()


def compile_operation(
    program: Program,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    memory: RowMemory,
    operation: Operation,
) -> Run:
    """One operation of a Program by itself, with its weights."""
    return _Compiler(program, weights, options, memory).one(operation)


class _Compiler:
    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Tensor],
        options: LaneOptions,
        memory: RowMemory,
    ) -> None:
        self._program = program
        self._weights = weights
        self._rotations: dict[tuple[tuple[float, ...], bool], Rotation] = {}
        self._context = options.context
        self._memory = memory

    def compile(self) -> list[Kernel]:
        groups = _grouped(self._program.operations)
        last_use: dict[Value, int] = {}
        for index, group in enumerate(groups):
            for operation in group:
                last_use.update(dict.fromkeys(inputs(operation), index))
        dead: list[list[int]] = [[] for _ in groups]
        for value, index in last_use.items():
            dead[index].append(value.index)
        return [
            Kernel(self._group(group), tuple(values))
            for group, values in zip(groups, dead, strict=True)
        ]

    def one(self, operation: Operation) -> Run:
        return self._group([operation])

    def _group(self, group: Sequence[Operation]) -> Run:
        projections = [operation for operation in group if isinstance(operation, Linear)]
        if projections:
            return self._linear(projections)
        (operation,) = group
        match operation:
            case Embed():
                return self._embed(operation)
            case RmsNorm():
                return _rms_norm(operation, self._weights[operation.weight].to_float32())
            case Rope():
                return _rope(operation, self._rotation(operation))
            case Attend():
                return _attend(operation, self._memory.caches[operation.cache])
            case Part():
                return _part(operation)
            case Convolve():
                return _convolve(
                    operation,
                    self._weights[operation.weight].to_float32(),
                    self._memory.states[operation.state],
                )
            case DeltaRule():
                return self._delta_rule(operation)
            case Gate():
                return _gate(operation)
            case Add():
                return _add(operation)
            case Select():
                return _select(operation)
            case Logits():
                return self._logits(operation)
            case _:
                raise AssertionError(f"no kernel for {operation}")

    def _linear(self, projections: Sequence[Linear]) -> Run:
        """One product for all projections of an input; their outputs are views of it."""
        x = projections[0].x
        widths = [operation.out.width for operation in projections]
        weight = aligned.empty((x.width, sum(widths)))
        bias = np.zeros(sum(widths), np.float32)
        outs: list[tuple[int, slice]] = []
        start = 0
        for operation, width in zip(projections, widths, strict=True):
            part = slice(start, start + width)
            aligned.decode_into(weight[:, part].T, self._weights[operation.weight])
            if operation.bias is not None:
                bias[part] = self._weights[operation.bias].to_float32()
            outs.append((operation.out.index, part))
            start += width
        return _project(x.index, tuple(outs), weight, bias if bias.any() else None)

    def _embed(self, operation: Embed) -> Run:
        """Decodes the tokens' rows as they are needed."""
        tensor, out = self._weights[operation.weight], operation.out.index
        scale = np.float32(operation.scale)

        def run(registers: Registers, step: Step) -> None:
            rows = tensor.rows_to_float32(step.tokens)
            if scale != 1:
                rows *= scale
            put_features(step.slices, rows)
            registers[out] = rows

        return run

    def _logits(self, operation: Logits) -> Run:
        weight = aligned.empty((operation.x.width, operation.out.width))
        aligned.decode_into(weight.T, self._weights[operation.weight])
        return _project(operation.x.index, ((operation.out.index, slice(None)),), weight)

    def _delta_rule(self, operation: DeltaRule) -> Run:
        rates = self._weights[operation.rate].to_float32()
        rule = GatedDeltaRule(
            operation,
            np.exp(rates) if operation.in_log else -rates,
            self._weights[operation.rate_bias].to_float32(),
        )
        state, out = self._memory.states[operation.state], operation.out.index
        arguments = [value.index for value in inputs(operation)]

        def run(registers: Registers, step: Step) -> None:
            q, k, v, decay, strength = (_read(registers, index) for index in arguments)
            result = np.empty((len(v), operation.out.width), np.float32)
            for part, at in step.parts():
                result[at] = rule(q[at], k[at], v[at], decay[at], strength[at], state.of(part))
            registers[out] = result

        return run

    def _rotation(self, operation: Rope) -> Rotation:
        """One for all operations with the same frequencies."""
        key = operation.frequencies, operation.interleaved
        if key not in self._rotations:
            self._rotations[key] = Rotation(*key, self._context)
        return self._rotations[key]


def _grouped(operations: Sequence[Operation]) -> list[list[Operation]]:
    """The operations in order, projections of one input drawn together at the first of them."""
    groups: list[list[Operation]] = []
    projections: dict[Value, list[Operation]] = {}
    for operation in operations:
        if isinstance(operation, Linear) and operation.x in projections:
            projections[operation.x].append(operation)
            continue
        groups.append([operation])
        if isinstance(operation, Linear):
            projections[operation.x] = groups[-1]
    return groups


def _read(registers: Registers, index: int) -> Float32:
    value = registers[index]
    assert value is not None
    return value


def _project(
    x: int, outs: tuple[tuple[int, slice], ...], weight: Float32, bias: Float32 | None = None
) -> Run:
    """``weight`` is ``[x.width, widths]``: BLAS reads that order faster for a single token."""

    def run(registers: Registers, step: Step) -> None:
        value = _read(registers, x)
        y = (value[0] @ weight)[None] if len(value) == 1 else value @ weight
        if bias is not None:
            y += bias
        for out, part in outs:
            registers[out] = y[:, part]

    return run


def _rms_norm(operation: RmsNorm, weight: Float32) -> Run:
    x, out, groups = operation.x.index, operation.out.index, operation.groups
    width = operation.x.width // groups
    # With sums for means: x / sqrt(sum(x**2) + width * eps) * sqrt(width) * (weight + offset).
    eps = np.float32(width * operation.eps)
    scale = np.float32(math.sqrt(width)) * (weight + np.float32(operation.offset))

    def run(registers: Registers, step: Step) -> None:
        value = _read(registers, x)
        parts = value.reshape(len(value), groups, width)
        root = np.sqrt(np.vecdot(parts, parts) + eps)
        registers[out] = (parts / root[..., None] * scale).reshape(value.shape)

    return run


def _rope(operation: Rope, turn: Rotation) -> Run:
    x, out, heads = operation.x.index, operation.out.index, operation.heads
    head_dim = operation.x.width // heads
    turned = 2 * len(operation.frequencies)

    def run(registers: Registers, step: Step) -> None:
        value = _read(registers, x)
        by_head = value.reshape(len(value), heads, head_dim)
        if turned == head_dim:
            result = turn(by_head, step)
        else:
            result = by_head.copy()
            result[..., :turned] = turn(by_head[..., :turned], step)
        registers[out] = result.reshape(len(value), -1)

    return run


def _attend(operation: Attend, cache: CacheArrays) -> Run:
    q, k, v = operation.q.index, operation.k.index, operation.v.index
    out, scale = operation.out.index, np.float32(operation.scale)

    def run(registers: Registers, step: Step) -> None:
        queries = _read(registers, q) * scale
        keys, values = _read(registers, k), _read(registers, v)
        attended: list[Float32] = []
        for part, tokens in step.parts():
            cache.write(part.row, part.start, keys[tokens], values[tokens])
            attended.append(attend(queries[tokens], cache, part.row, part.start))
        registers[out] = attended[0] if len(attended) == 1 else np.concatenate(attended)

    return run


def _part(operation: Part) -> Run:
    x, out, groups = operation.x.index, operation.out.index, operation.groups
    columns = slice(operation.start, operation.start + operation.out.width // groups)

    def run(registers: Registers, step: Step) -> None:
        value = _read(registers, x)
        parts = value.reshape(len(value), groups, -1)[..., columns]
        registers[out] = parts.reshape(len(value), -1)

    return run


def _convolve(operation: Convolve, weight: Float32, state: StateArrays) -> Run:
    x, out, taps = operation.x.index, operation.out.index, operation.taps
    activate = ACTIVATIONS[operation.activation]
    # One tap of all columns after another.
    weights = np.ascontiguousarray(weight.reshape(-1, taps).T)

    def run(registers: Registers, step: Step) -> None:
        value = _read(registers, x)
        convolved = np.zeros(value.shape, np.float32)
        for part, tokens in step.parts():
            last = state.of(part)
            seen = np.concatenate([last, value[tokens]])
            count = len(part.tokens)
            for tap in range(taps):
                convolved[tokens] += weights[tap] * seen[tap : tap + count]
            last[...] = seen[count:]
        registers[out] = activate(convolved)

    return run


def _gate(operation: Gate) -> Run:
    gate, up, out = operation.gate.index, operation.up.index, operation.out.index
    activate = ACTIVATIONS[operation.activation]

    def run(registers: Registers, step: Step) -> None:
        activated = activate(_read(registers, gate))
        activated *= _read(registers, up)
        registers[out] = activated

    return run


def _silu(x: Float32) -> Float32:
    activated: Float32 = np.negative(x)
    np.exp(activated, out=activated)
    activated += 1
    return np.divide(x, activated, out=activated)


def _gelu_tanh(x: Float32) -> Float32:
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    activated: Float32 = np.float32(0.5) * x * (1 + np.tanh(inner))
    return activated


def _sigmoid(x: Float32) -> Float32:
    activated: Float32 = np.negative(x)
    np.exp(activated, out=activated)
    activated += 1
    return np.divide(np.float32(1), activated, out=activated)


ACTIVATIONS: Mapping[Activation, Callable[[Float32], Float32]] = {
    Activation.SILU: _silu,
    Activation.GELU_TANH: _gelu_tanh,
    Activation.SIGMOID: _sigmoid,
}


def _add(operation: Add) -> Run:
    a, b, out = operation.a.index, operation.b.index, operation.out.index

    def run(registers: Registers, step: Step) -> None:
        registers[out] = _read(registers, a) + _read(registers, b)

    return run


def _select(operation: Select) -> Run:
    x, out = operation.x.index, operation.out.index

    def run(registers: Registers, step: Step) -> None:
        registers[out] = _read(registers, x)[step.wanted]

    return run
