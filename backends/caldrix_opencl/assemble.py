"""From a plan to launches: buffers, kernels and the arguments that join them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from caldrix.models.program import (
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
from caldrix_opencl.addresses import Addresses, StepBuffers
from caldrix_opencl.build import ACTIVATIONS, Builder, kernel_of
from caldrix_opencl.context import Context
from caldrix_opencl.launches import (
    SEGMENT,
    SEGMENTED,
    AttendedLaunch,
    AttendLaunch,
    ChainLaunch,
    ColumnsLaunch,
    Launch,
    PartsLaunch,
    SlicesLaunch,
)
from caldrix_opencl.plan import Item, Norm, Plan, Product, Turn, results, runs
from caldrix_opencl.products import Packed, Products
from caldrix_opencl.rows import Cache, State
from caldrix_opencl.weights import WeightStore

_int, _float = np.int32, np.float32


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
        addresses = Addresses(plan, buffers)
        self._at, self._residual = addresses.at, addresses.residual
        self._products = Products(context, self._builder, store, addresses, buffers.arena)
        self._angles: dict[tuple[float, ...], tuple[cl.Buffer, cl.Buffer]] = {}
        self._columns = self._builder.program(
            ["lanes", "activations", "columns"], {"TYPE": "float"}
        )

    def launches(self) -> tuple[list[Launch], list[Launch]]:
        """Those of all tokens, and those of the tokens whose logits are asked for."""
        self._store.begin()
        return self._all_of(self._plan.before), self._all_of(self._plan.after)

    def _all_of(self, items: Sequence[Item]) -> list[Launch]:
        """The launches of some items, with those drawn together that one kernel can do."""
        return [each for run in runs(items, self._shape.products) for each in self._run(run)]

    def _run(self, run: Sequence[Item]) -> list[Launch]:
        """The launches of items that follow one another; one for all of them if they share it."""
        whole = all(self._store.is_whole(item) for item in run if isinstance(item, Product))
        match run:
            case [Product(), _, *_] if whole:
                return [self._chain(run)]
            case [Turn() as turn, Attend() as attend, Product(), *_] if whole:
                return [self._attended(turn, attend, run)]
            case _:
                return [each for item in run for each in self._of(item)]

    def _chain(self, run: Sequence[Item]) -> ChainLaunch:
        """Products by themselves, or all of one token in one kernel."""
        packed = self._packed(run)
        kept = _kept(self._caches[0]) if self._caches else {"DIM": TILE_ROWS, "KV_HALF": 0}
        return self._chain_of(packed, kept)

    def _chain_of(self, run: Sequence[Packed], kept: Mapping[str, int | str]) -> ChainLaunch:
        alone = [self._products.launch(each, self._norm_before(each.product)) for each in run]
        kind = "chain", *(each.kind for each in alone)
        kernel = self._products.chain(run, kept)
        return ChainLaunch(kind, kernel, self._context.device.units, alone)

    def _attended(self, turn: Turn, attend: Attend, run: Sequence[Item]) -> AttendedLaunch:
        """Attention and products by themselves, or all of one token in one kernel."""
        cache, packed = self._caches[attend.cache], self._packed(run)
        values = turn.q, turn.k, attend.v, attend.q, attend.out
        kernel = self._products.chain(
            packed, _kept(cache),
            (
                *(self._at(value)[0] for value in values), *self._turning(turn),
                _int(self._windows[attend.cache] or 0), _float(attend.scale), self._buffers.places,
            ),
        )  # fmt: skip
        separately = self._turn(turn), self._attend(attend), self._chain_of(packed, _kept(cache))
        kind = "attended", *(each.kind for each in separately)
        return AttendedLaunch(kind, kernel, self._context.device.units, separately)

    def _packed(self, run: Sequence[Item]) -> list[Packed]:
        return [
            packed
            for item in run
            if isinstance(item, Product)
            for packed in self._products.packed(item)
        ]

    def _product(self, product: Product) -> list[Launch]:
        """A launch for each piece of its matrix, after its norm if it has one."""
        packed, norm = self._products.packed(product), self._norm_before(product)
        if norm is not None and self._shape.is_vector and len(packed) == 1:
            return [self._products.launch(packed[0], norm)]
        launches: list[Launch] = [
            self._products.launch(each, None, inside=False) for each in packed
        ]
        return launches if norm is None else [norm, *launches]

    def _norm_before(self, product: Product) -> Launch | None:
        return None if product.norm is None else self._norm(Norm(product.norm))

    def _of(self, item: Item) -> list[Launch]:
        match item:
            case Product():
                return self._product(item)
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

    def _norm(self, norm: Norm) -> Launch:
        operation = norm.operation
        kernel = kernel_of(
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
        kernel = kernel_of(
            self._columns, "rope",
            self._buffers.arena, *self._at(rope.x), *self._at(rope.out), _int(items),
            _int(head_dim), *self._tables(rope.frequencies), _int(pairs),
            _int(rope.interleaved), self._buffers.places,
        )  # fmt: skip
        return self._columns_launch("rope", kernel, items)

    def _turn(self, turn: Turn) -> Launch:
        attend = turn.attend
        cache = self._caches[attend.cache]
        kernel = kernel_of(
            self._builder.program(["lanes", "cache", "turn"], _kept(cache)), "turn",
            self._buffers.arena, *self._at(turn.q), *self._at(turn.k), *self._at(attend.v),
            *self._at(attend.q), *self._turning(turn), self._buffers.places,
        )  # fmt: skip
        heads = attend.heads + 2 * cache.layout.kv_heads
        return PartsLaunch(("turn", *_kept(cache).values()), kernel, heads, self._shape.lanes)

    def _turning(self, turn: Turn) -> tuple[Any, ...]:
        """A turn's norms, angles, cache and sizes."""
        attend = turn.attend
        cache = self._caches[attend.cache]
        layout = cache.layout
        q_norm, k_norm = turn.norms
        eps = next((norm.eps for norm in turn.norms if norm), 0.0)
        rope = turn.ropes[0] if turn.ropes else None
        frequencies = rope.frequencies if rope else ()
        return (
            self._head_norm(q_norm), self._head_norm(k_norm), _float(eps),
            *self._tables(frequencies), _int(len(frequencies)),
            _int(bool(rope and rope.interleaved)),
            cache.keys, cache.values, _int(attend.heads), _int(layout.kv_heads),
            _int(layout.head_dim), _int(layout.positions),
        )  # fmt: skip

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
            kernel_of(attending, name, *arguments)
            for name in ("attend", "attend_segment", "merge_segments")
        )
        kind = "attend", *definitions.values()
        return AttendLaunch(kind, whole, segment, merge, attend.heads, together, self._shape.lanes)

    def _convolve(self, operation: Convolve) -> Launch:
        width = operation.x.width
        program = self._builder.program(
            ["lanes", "activations", "convolve"], {"TAPS": operation.taps, "TYPE": "float"}
        )
        kernel = kernel_of(
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
        kernel = kernel_of(
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
        kernel = kernel_of(self._columns, name, self._buffers.arena, *places, _int(width), *others)
        return self._columns_launch(name, kernel, width)

    def _columns_launch(self, kind: object, kernel: cl.Kernel, items: int) -> Launch:
        group = self._shape.columns
        return ColumnsLaunch(kind, kernel, padded(items, group), group)

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
