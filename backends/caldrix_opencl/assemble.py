"""From a plan to launches: buffers, kernels and the arguments that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from attrs import frozen

from caldrix.models.program import (
    Activation,
    Add,
    Attend,
    Convolve,
    DeltaRule,
    Gate,
    Part,
    RmsNorm,
    Rope,
    Select,
    Value,
    inputs,
)
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded, tiles_of
from caldrix_opencl.build import Builder
from caldrix_opencl.context import Context
from caldrix_opencl.launches import (
    SEGMENT,
    SEGMENTED,
    AttendLaunch,
    ColumnsLaunch,
    Launch,
    PartsLaunch,
    ProductLaunch,
    SlicesLaunch,
)
from caldrix_opencl.plan import (
    Item,
    Norm,
    Place,
    Plan,
    Product,
    Turn,
    is_logits,
    residual,
    results,
)
from caldrix_opencl.rows import Cache, State
from caldrix_opencl.weights import Matrix, WeightStore, definitions_of

ACTIVATIONS: Mapping[Activation, int] = {
    Activation.SILU: 0,
    Activation.GELU_TANH: 1,
    Activation.SIGMOID: 2,
}
"""As ``kernels/activations.cl`` numbers them."""

_int, _ulong, _long, _float = np.int32, np.uint64, np.int64, np.float32


@frozen(eq=False)
class StepBuffers:
    """The device's memory that steps share."""

    tokens: int
    """Rows of each matrix of the arena."""
    arena: cl.Buffer
    logits: cl.Buffer
    logits_stride: int
    places: cl.Buffer
    """``[tokens][2]``: each token's position and row."""
    slices: cl.Buffer
    """``[slices][4]``: a slice's first token, how many it has, its row, where in it they begin."""
    wanted: cl.Buffer
    """Which tokens' logits are asked for."""
    records: cl.Buffer
    """What segments of attention come to, ``[tokens][heads][segments][dim + 2]``."""


class Assembler:
    """Makes launches, and what their arguments point to."""

    def __init__(
        self,
        context: Context,
        plan: Plan,
        store: WeightStore,
        caches: Sequence[Cache],
        states: Sequence[State],
        windows: Sequence[int | None],
        buffers: StepBuffers,
        positions: int,
    ) -> None:
        self._context = context
        self._shape = context.shape
        self._builder = Builder(context)
        self._plan = plan
        self._store = store
        self._caches = caches
        self._states = states
        self._windows = windows
        self._buffers = buffers
        self._positions = positions
        self._angles: dict[tuple[float, ...], tuple[cl.Buffer, cl.Buffer]] = {}
        self._columns = self._builder.program(
            ["lanes", "activations", "columns"], {"TYPE": "float"}
        )

    def launches(self) -> tuple[list[Launch], list[Launch]]:
        """Those of all tokens, and those of the tokens whose logits are asked for."""
        self._store.begin()
        before = [each for item in self._plan.before for each in self._of(item)]
        after = [each for item in self._plan.after for each in self._of(item)]
        return before, after

    def _of(self, item: Item) -> list[Launch]:
        match item:
            case Product():
                return [self._product(item, matrix) for matrix in self._store.matrices(item)]
            case Norm():
                return [self._norm(item)]
            case Rope():
                return [self._rope(item)]
            case Turn():
                return [self._turn(item)]
            case Attend():
                return [self._attend(item)]
            case Convolve():
                return [self._convolve(item)]
            case DeltaRule():
                return [self._delta_rule(item)]
            case Gate():
                activation = _int(ACTIVATIONS[item.activation])
                return [self._by_columns("gate", (item.gate, item.up, item.out), activation)]
            case Add():
                return [self._by_columns("add", (item.a, item.b, item.out))]
            case Part():
                whole, taken = item.x.width // item.groups, item.out.width // item.groups
                sizes = _int(taken), _int(item.start), _int(whole)
                return [self._by_columns("part", (item.x, item.out), *sizes)]
            case Select():
                return [self._by_columns("pick", (item.x, item.out), self._buffers.wanted)]

    def _product(self, product: Product, matrix: Matrix) -> Launch:
        bias = self._store.biases(product, matrix)
        column = TILE_ROWS * matrix.first
        if is_logits(product):
            out = self._buffers.logits, _ulong(column), _int(self._buffers.logits_stride)
        else:
            out = self._buffers.arena, *self._at(results(product)[0], column)
        gate = product.gate
        tiles = matrix.tiles
        definitions = {
            **definitions_of(product.layout),
            "GATED": int(gate is not None),
            "ACTIVATION": 0 if gate is None else ACTIVATIONS[gate.activation],
        }
        kernels = {}
        for group in self._shape.tokens:
            program = self._builder.program(
                ["lanes", "weights", "activations", "matmul"], {"TOKENS": group, **definitions}
            )
            kernels[group] = _kernel(
                program, "matmul",
                matrix.buffer, _ulong(matrix.tile_bytes), _int(matrix.columns), _int(tiles),
                self._buffers.arena, *self._at(product.x), *out, bias,
                *self._residual(product, column),
            )  # fmt: skip
        return ProductLaunch(tuple(definitions.values()), kernels, tiles, self._shape)

    def _norm(self, norm: Norm) -> Launch:
        operation = norm.operation
        kernel = _kernel(
            self._builder.program(["lanes", "norm"], {"PARTS": self._shape.parts}), "rms_norm",
            self._buffers.arena, *self._at(operation.x), *self._at(results(norm)[0]),
            self._store.vector(operation.weight, operation.offset),
            _int(operation.x.width // operation.groups), _float(operation.eps),
            *self._residual(norm),
        )  # fmt: skip
        return PartsLaunch("norm", kernel, operation.groups, self._shape.lanes, self._shape.parts)

    def _rope(self, rope: Rope) -> Launch:
        head_dim, pairs = rope.x.width // rope.heads, len(rope.frequencies)
        items = rope.heads * (head_dim - pairs)
        kernel = _kernel(
            self._columns, "rope",
            self._buffers.arena, *self._at(rope.x), *self._at(rope.out), _int(items),
            _int(head_dim), *self._tables(rope.frequencies), _int(pairs),
            _int(rope.interleaved), self._buffers.places,
        )  # fmt: skip
        return self._columns_launch("rope", kernel, items)

    def _turn(self, turn: Turn) -> Launch:
        attend = turn.attend
        cache = self._caches[attend.cache]
        layout = cache.layout
        q_norm, k_norm = turn.norms
        eps = next((norm.eps for norm in turn.norms if norm), 0.0)
        rope = turn.ropes[0] if turn.ropes else None
        frequencies = rope.frequencies if rope else ()
        interleaved = bool(rope and rope.interleaved)
        kernel = _kernel(
            self._builder.program(["lanes", "cache", "turn"], _kept(cache)), "turn",
            self._buffers.arena, *self._at(turn.q), *self._at(turn.k), *self._at(attend.v),
            *self._at(attend.q), self._head_norm(q_norm), self._head_norm(k_norm), _float(eps),
            *self._tables(frequencies), _int(len(frequencies)), _int(interleaved),
            cache.keys, cache.values, _int(attend.heads), _int(layout.kv_heads),
            _int(layout.head_dim), _int(layout.positions), self._buffers.places,
        )  # fmt: skip
        heads = attend.heads + 2 * layout.kv_heads
        return PartsLaunch(("turn", *_kept(cache).values()), kernel, heads, self._shape.lanes)

    def _head_norm(self, norm: RmsNorm | None) -> cl.Buffer | None:
        return None if norm is None else self._store.vector(norm.weight, norm.offset)

    def _attend(self, attend: Attend) -> Launch:
        cache = self._caches[attend.cache]
        layout, window = cache.layout, self._windows[attend.cache]
        together = _most_together(attend.heads, self._shape.heads)
        definitions = {**_kept(cache), "HEADS": together, "SEGMENT": SEGMENT}
        attending = self._builder.program(["lanes", "cache", "attend"], definitions)
        arguments = (
            self._buffers.arena, *self._at(attend.q), *self._at(attend.out),
            cache.keys, cache.values, _int(attend.heads), _int(layout.kv_heads),
            _int(layout.head_dim), _int(layout.positions), _int(window or 0),
            _float(attend.scale), self._buffers.places, self._buffers.records,
            _int(self._positions // SEGMENT + 1),
        )  # fmt: skip
        whole, segment, merge = (
            _kernel(attending, name, *arguments)
            for name in ("attend", "attend_segment", "merge_segments")
        )
        kind = "attend", *definitions.values()
        return AttendLaunch(kind, whole, segment, merge, attend.heads, together, self._shape.lanes)

    def _convolve(self, operation: Convolve) -> Launch:
        width = operation.x.width
        program = self._builder.program(
            ["lanes", "activations", "convolve"], {"TAPS": operation.taps, "TYPE": "float"}
        )
        kernel = _kernel(
            program, "convolve",
            self._buffers.arena, *self._at(operation.x), *self._at(operation.out), _int(width),
            self._store.taps(operation), _int(ACTIVATIONS[operation.activation]),
            self._states[operation.state].buffer, self._buffers.slices,
        )  # fmt: skip
        group = self._shape.columns
        kind = "convolve", operation.taps
        return SlicesLaunch(kind, kernel, (padded(width, group),), (group,))

    def _delta_rule(self, operation: DeltaRule) -> Launch:
        key_dim = operation.k.width // operation.key_heads
        value_dim = operation.v.width // operation.heads
        program = self._builder.program(["lanes", "delta_rule"], {"KEY_DIM": key_dim})
        kernel = _kernel(
            program, "delta_rule",
            self._buffers.arena, *(each for value in inputs(operation) for each in self._at(value)),
            *self._at(operation.out), self._store.rates(operation),
            self._store.vector(operation.rate_bias), _int(operation.heads),
            _int(operation.key_heads), _int(value_dim), _float(operation.scale),
            _float(operation.eps), _int(operation.tiled), self._states[operation.state].buffer,
            self._buffers.slices,
        )  # fmt: skip
        lanes = self._shape.lanes
        work = lanes * tiles_of(value_dim), operation.heads
        return SlicesLaunch(("delta rule", key_dim), kernel, work, (lanes, 1))

    def _by_columns(self, name: str, values: Sequence[Value], *others: Any) -> Launch:
        """A kernel of values, the last of which it writes, of their width, and of others."""
        width = values[-1].width
        places = [argument for value in values for argument in self._at(value)]
        kernel = _kernel(self._columns, name, self._buffers.arena, *places, _int(width), *others)
        return self._columns_launch(name, kernel, width)

    def _columns_launch(self, kind: object, kernel: cl.Kernel, items: int) -> Launch:
        group = self._shape.columns
        return ColumnsLaunch(kind, kernel, padded(items, group), group)

    def _at(self, value: Value, column: int = 0) -> tuple[np.uint64, np.int32]:
        """The place of a value, or of its columns from one on, as kernels take it."""
        place: Place = self._plan.places[value]
        return _ulong(place.at(self._buffers.tokens) + column), _int(place.stride)

    def _residual(self, item: Product | Norm, column: int = 0) -> tuple[np.int64, np.int32]:
        added = residual(item)
        if added is None:
            return _long(-1), _int(0)
        at, stride = self._at(added, column)
        return _long(at), stride

    def _tables(self, frequencies: tuple[float, ...]) -> tuple[cl.Buffer, cl.Buffer]:
        """Cosines and sines, ``[positions][pairs]``, computed in float64."""
        if frequencies not in self._angles:
            angles = np.outer(np.arange(self._positions), np.array(frequencies, np.float64))
            self._angles[frequencies] = (
                self._context.upload(np.cos(angles).astype(np.float32)),
                self._context.upload(np.sin(angles).astype(np.float32)),
            )
        return self._angles[frequencies]


def record_floats(program_heads: int, dim: int, positions: int) -> int:
    """Floats of the segments of attention of a few tokens."""
    segments = positions // SEGMENT + 1
    return SEGMENTED * program_heads * segments * (padded(dim, TILE_ROWS) + 2)


def _kept(cache: Cache) -> Mapping[str, int | str]:
    """What ``kernels/cache.cl`` has to know."""
    return {"DIM": cache.layout.dim, "KV_HALF": int(cache.layout.value_bytes == 2)}


def _most_together(heads: int, most: int) -> int:
    return next(count for count in range(most, 0, -1) if heads % count == 0)


def _kernel(program: cl.Program, name: str, *arguments: Any) -> cl.Kernel:
    """A kernel of its own, with its arguments set for good."""
    kernel = cl.Kernel(program, name)
    kernel.set_args(*arguments)
    return kernel
