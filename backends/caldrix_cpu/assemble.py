"""From a plan to a tape: weights packed, caches laid out, addresses filled in."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field

from caldrix.models.encoder_program import Activate, AddTable, AttendAll, LayerNorm
from caldrix.models.program import (
    Activation,
    Add,
    Attend,
    Convolve,
    Gate,
    KvCache,
    Part,
    RmsNorm,
    Rope,
    Select,
)
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.kv_cache import Cache, CacheLayout
from caldrix_cpu.library import Kernel
from caldrix_cpu.numpy_memory import StateArrays
from caldrix_cpu.plan import ByNumpy, Columns, Delta, Pack, Plan, Projection
from caldrix_cpu.rope_tables import RopeTable
from caldrix_cpu.states import Remembering, kept_bytes, key_dim, state_shape
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_cpu.weights import Matrix, WeightStore

_ACTIVATIONS = {
    Activation.SILU: tape.GATED_SILU,
    Activation.GELU_TANH: tape.GATED_GELU_TANH,
    Activation.SIGMOID: tape.GATED_SIGMOID,
}
_NO_WINDOW = 1 << 40


@define
class Tape:
    """A plan as numbers, and what they point to."""

    records: npt.NDArray[np.int64]
    ropes: list[RopeTable]
    matrices: dict[int, Matrix] = field(factory=dict)
    """By item."""
    caches: list[Cache] = field(factory=list)
    """Those that the tape writes."""
    states: list[StateArrays] = field(factory=list)
    """Those that the tape writes."""
    slots: int = 1
    """Packed activations that are needed at the same time."""

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that a token reads."""
        return sum(matrix.size for matrix in self.matrices.values())


def units_of(plan: Plan, kv_dtype: str) -> list[str]:
    """The kernels that a plan needs."""
    formats = {item.format.unit for item in plan.items if isinstance(item, Projection)}
    by_themselves = {Convolve: "convolve", Delta: "delta"}
    named = {by_themselves[type(item)] for item in plan.items if type(item) in by_themselves}
    return ["run", "work", f"attend-{kv_dtype}", *sorted(named), *sorted(formats)]


class Assembler:
    """Writes a tape, item by item."""

    def __init__(
        self,
        kv_caches: Sequence[KvCache],
        plan: Plan,
        weights: WeightStore,
        caches: Sequence[CacheLayout],
        cache_memory: Arena,
        kernels: Mapping[str, Kernel],
        context: int,
        rows: int,
        attend: str,
    ) -> None:
        self._kv_caches = kv_caches
        self._plan = plan
        self._weights = weights
        self._caches = caches
        self._cache_memory = cache_memory
        self._kernels = kernels
        self._context = context
        self._rows = rows
        self._attend_kernel = kernels[attend].address
        self._ropes: dict[tuple[float, ...], RopeTable] = {}
        self._slots = _slots(plan)
        self._all_memory: list[int] = []

    def assemble(self, packed: Callable[[int], None]) -> Tape:
        """The tape; ``packed`` is told of each product's weights as they are there."""
        records = np.zeros((len(self._plan.items), tape.RECORD), np.int64)
        result = Tape(records, [])
        for index, item in enumerate(self._plan.items):
            record = records[index]
            record[tape.WAITS] = self._plan.waits[index]
            match item:
                case Pack():
                    self._pack(record, item)
                case Projection():
                    result.matrices[index] = self._projection(record, item)
                    packed(1)
                case RmsNorm():
                    self._norm(record, item)
                case Rope():
                    self._rope(record, item)
                case Attend():
                    result.caches.append(self._attend(record, item))
                case Part():
                    self._part(record, item)
                case Convolve():
                    result.states.append(self._convolve(record, item))
                case Delta():
                    result.states.append(self._delta(record, item))
                case Gate():
                    self._write(record, tape.GATE, item)
                    record[tape.X] = self._at(item.gate)
                    record[tape.OTHER] = self._at(item.up)
                    record[tape.ACTIVATION] = _ACTIVATIONS[item.activation]
                case Add():
                    self._write(record, tape.ADD, item)
                    record[tape.X], record[tape.OTHER] = self._at(item.a), self._at(item.b)
                case Select():
                    self._write(record, tape.SELECT, item)
                    record[tape.X] = self._at(item.x)
                case LayerNorm():
                    self._layer_norm(record, item)
                case Activate():
                    self._write(record, tape.ACTIVATE, item)
                    record[tape.X], record[tape.WIDTH] = self._at(item.x), item.x.width
                    record[tape.ACTIVATION] = _ACTIVATIONS[item.activation]
                case AddTable():
                    self._write(record, tape.ADD_TABLE, item)
                    record[tape.X] = self._at(item.x)
                    record[tape.OTHER] = self._weights.table(item.weight)
                case AttendAll():
                    self._attend_all(record, item)
                case ByNumpy():
                    pass
        products = sorted(result.matrices)
        for index, following in pairwise(products):
            records[index, tape.NEXT] = following - index
        result.ropes = list(self._ropes.values())
        result.slots = max(self._slots.values(), default=0) + 1
        return result

    def _at(self, value: Any) -> int:
        return self._plan.places[value].reference

    def _write(
        self, record: Any, operation: int, item: Gate | Add | Select | Activate | AddTable
    ) -> None:
        """What operations on whole rows have in common."""
        record[tape.OPERATION] = operation
        record[tape.OUT] = self._at(item.out)
        record[tape.WIDTH] = self._plan.places[item.out].width

    def _pack(self, record: Any, item: Pack) -> None:
        record[tape.OPERATION] = tape.PACK
        record[tape.X] = self._at(item.x)
        record[tape.KIND] = item.kind
        record[tape.SLOT] = self._slots[item]
        record[tape.COLUMNS] = pack_columns(item)
        if item.norm is not None:
            norm = item.norm
            record[tape.NORM_WEIGHT] = self._weights.vector(norm.weight, norm.x.width, norm.offset)
            record[tape.NORM_EPS] = float_bits(norm.eps)
            record[tape.NORM_WIDTH] = norm.x.width

    def _projection(self, record: Any, item: Projection) -> Matrix:
        matrix = self._weights.matrix(item)
        record[tape.OPERATION] = tape.LINEAR
        record[tape.KIND] = item.pack.kind
        record[tape.SLOT] = self._slots[item.pack]
        record[tape.COLUMNS] = matrix.columns
        record[tape.MATMUL] = self._kernels[item.format.unit].address
        record[tape.WEIGHTS] = matrix.address
        record[tape.TILE_BYTES] = matrix.tile_bytes
        record[tape.TILES] = matrix.tiles
        record[tape.HALVES] = item.format.halves
        record[tape.BIAS] = self._weights.biases(item)
        record[tape.RESIDUAL] = tape.NO_VALUE if item.residual is None else self._at(item.residual)
        record[tape.GATED] = tape.GATED_NOT if item.gate is None else _ACTIVATIONS[item.gate]
        record[tape.TO_LOGITS] = item.to_logits
        record[tape.OUT] = tape.NO_VALUE if item.to_logits else self._at(item.outs[0])
        return matrix

    def _norm(self, record: Any, item: RmsNorm) -> None:
        width = item.x.width // item.groups
        record[tape.OPERATION] = tape.NORM
        record[tape.X], record[tape.OUT] = self._at(item.x), self._at(item.out)
        record[tape.NORM_WEIGHT] = self._weights.vector(item.weight, width, item.offset)
        record[tape.NORM_EPS] = float_bits(item.eps)
        record[tape.NORM_WIDTH] = width
        record[tape.GROUPS] = item.groups

    def _layer_norm(self, record: Any, item: LayerNorm) -> None:
        width = item.x.width
        record[tape.OPERATION] = tape.LAYER_NORM
        record[tape.X], record[tape.OUT] = self._at(item.x), self._at(item.out)
        record[tape.NORM_WEIGHT] = self._weights.vector(item.weight, width)
        record[tape.NORM_BIAS] = self._weights.vector(item.bias, width)
        record[tape.NORM_EPS] = float_bits(item.eps)
        record[tape.NORM_WIDTH] = width

    def _rope(self, record: Any, item: Rope) -> None:
        if item.frequencies not in self._ropes:
            self._ropes[item.frequencies] = RopeTable(item.frequencies, self._context)
        record[tape.OPERATION] = tape.ROPE
        record[tape.X], record[tape.OUT] = self._at(item.x), self._at(item.out)
        record[tape.HEADS] = item.heads
        record[tape.HEAD_DIM] = item.x.width // item.heads
        record[tape.PAIRS] = len(item.frequencies)
        record[tape.INTERLEAVED] = item.interleaved
        record[tape.COSINES], record[tape.SINES] = self._ropes[item.frequencies].addresses

    def _attend(self, record: Any, item: Attend) -> Cache:
        cache, layout = self._kv_caches[item.cache], self._caches[item.cache]
        record[tape.OPERATION] = tape.ATTEND
        record[tape.X], record[tape.OUT] = self._at(item.q), self._at(item.out)
        record[tape.KEYS], record[tape.VALUES] = self._at(item.k), self._at(item.v)
        record[tape.HEADS] = item.heads
        record[tape.HEAD_DIM] = cache.head_dim
        record[tape.KV_HEADS] = cache.kv_heads
        record[tape.PADDED_DIM] = layout.padded_dim
        record[tape.SCALE] = float_bits(item.scale)
        record[tape.FUNCTION] = self._attend_kernel
        shape = (self._rows, layout.kv_heads, layout.head_bytes)
        keys, values = (
            self._cache_memory.take(self._rows * layout.row_bytes).reshape(shape) for _ in range(2)
        )
        record[tape.KEY_CACHE], record[tape.VALUE_CACHE] = address(keys), address(values)
        record[tape.ROW_BYTES] = layout.row_bytes
        record[tape.HEAD_BYTES] = layout.head_bytes
        record[tape.RING] = layout.ring
        record[tape.WINDOW] = _NO_WINDOW if cache.window is None else cache.window
        return Cache(layout, cache.window, keys, values)

    def _part(self, record: Any, item: Part) -> None:
        record[tape.OPERATION] = tape.PART
        record[tape.X], record[tape.OUT] = self._at(item.x), self._at(item.out)
        record[tape.GROUPS] = item.groups
        record[tape.PART_COLUMNS] = item.out.width // item.groups
        record[tape.GROUP_COLUMNS] = item.x.width // item.groups
        record[tape.START] = item.start

    def _convolve(self, record: Any, item: Convolve) -> StateArrays:
        record[tape.OPERATION] = tape.CONVOLVE
        record[tape.X], record[tape.OUT] = self._at(item.x), self._at(item.out)
        record[tape.WIDTH] = item.x.width
        record[tape.ACTIVATION] = _ACTIVATIONS[item.activation]
        record[tape.TAPS] = item.taps
        record[tape.TAP_WEIGHTS] = self._weights.taps(item)
        record[tape.FUNCTION] = self._kernels["convolve"].address
        return self._state(record, item)

    def _delta(self, record: Any, item: Delta) -> StateArrays:
        operation = item.operation
        record[tape.OPERATION] = tape.DELTA_RULE
        record[tape.OUT] = self._at(operation.out)
        for name, columns in (
            (tape.X, item.q),
            (tape.KEYS, item.k),
            (tape.VALUES, item.v),
            (tape.DECAY, item.decay),
            (tape.STRENGTH, item.strength),
        ):
            record[name] = self._from(columns)
        record[tape.HEADS] = operation.heads
        record[tape.KEY_HEADS] = operation.key_heads
        record[tape.KEY_DIM] = key_dim(operation)
        record[tape.VALUE_DIM] = operation.v.width // operation.heads
        record[tape.TILED] = operation.tiled
        record[tape.SCALE] = float_bits(operation.scale)
        record[tape.UNIT_EPS] = float_bits(operation.eps)
        record[tape.RATES] = self._weights.rates(operation)
        record[tape.RATE_BIASES] = self._weights.vector(operation.rate_bias, operation.heads)
        record[tape.FUNCTION] = self._kernels["delta"].address
        return self._state(record, operation)

    def _from(self, columns: Columns) -> int:
        """A value's columns from one on, as a tape writes them."""
        return self._at(columns.x) + 2 * 4 * columns.start

    def _state(self, record: Any, operation: Remembering) -> StateArrays:
        size = kept_bytes(operation)
        state = self._cache_memory.take(self._rows * size)
        record[tape.STATE], record[tape.STATE_BYTES] = address(state), size
        return StateArrays(state.view(np.float32).reshape(self._rows, *state_shape(operation)))

    def _attend_all(self, record: Any, item: AttendAll) -> None:
        """Keys and values of all such operations use the same memory, one after another."""
        dim = item.q.width // item.heads
        head_bytes = all_head_bytes(self._rows, dim)
        if not self._all_memory:
            most = max(map(self._all_bytes, self._plan.items))
            self._all_memory = [address(self._cache_memory.take(most)) for _ in range(2)]
        record[tape.OPERATION] = tape.ATTEND_ALL
        record[tape.X], record[tape.OUT] = self._at(item.q), self._at(item.out)
        record[tape.KEYS], record[tape.VALUES] = self._at(item.k), self._at(item.v)
        record[tape.HEADS], record[tape.HEAD_DIM] = item.heads, dim
        record[tape.PADDED_DIM] = padded(dim, TILE_ROWS)
        record[tape.SCALE] = float_bits(item.scale)
        record[tape.FUNCTION] = self._attend_kernel
        record[tape.KEY_CACHE], record[tape.VALUE_CACHE] = self._all_memory
        record[tape.HEAD_BYTES] = head_bytes

    def _all_bytes(self, item: object) -> int:
        """Bytes of the keys, or of the values, of attention of all rows to all."""
        if not isinstance(item, AttendAll):
            return 0
        return item.heads * all_head_bytes(self._rows, item.q.width // item.heads)


def all_head_bytes(rows: int, dim: int) -> int:
    """Bytes of a head's keys, or of its values, as attention of all rows to all lays them out."""
    return 4 * padded(rows, TILE_ROWS) * padded(dim, TILE_ROWS)


def pack_columns(item: Pack) -> int:
    """Columns of packed activations, padded as every layout of their kind is."""
    return item.x.width if item.kind == tape.KIND_Q8 else -(-item.x.width // 4) * 4


def float_bits(value: float) -> int:
    """A float32's bits."""
    return int.from_bytes(struct.pack("<f", value), "little")


def _slots(plan: Plan) -> dict[Pack, int]:
    """A slot for each packed input, free again once its last product is done."""
    last_use = {
        item.pack: index for index, item in enumerate(plan.items) if isinstance(item, Projection)
    }
    slots: dict[Pack, int] = {}
    for index, item in enumerate(plan.items):
        if isinstance(item, Pack):
            taken = {slots[pack] for pack in slots if last_use.get(pack, -1) >= index}
            slots[item] = next(slot for slot in range(len(taken) + 1) if slot not in taken)
    return slots
