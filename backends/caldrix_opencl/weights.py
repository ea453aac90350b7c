"""Weights on the device: matrices in the tiles of the cpu lane, and vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from attrs import evolve, frozen

from caldrix.models.lane import LaneOptions, LaneUnavailable
from caldrix.models.program import Convolve, DeltaRule
from caldrix.weights.progress import SILENT, Progress
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import aligned
from caldrix_cpu.formats import choose_format
from caldrix_cpu.tiles.layouts import LAYOUTS, TILE_ROWS, QuantLayout, padded, tiles_of
from caldrix_cpu.tiles.pack import pack_into, packed_bytes
from caldrix_cpu.tiles.quantize import quantized
from caldrix_cpu.weights import release_pages
from caldrix_opencl.context import Context, Shape
from caldrix_opencl.plan import Plan, Product

_FLOATS = {"F32": "FLOAT32", "F16": "FLOAT16", "BF16": "BFLOAT16"}


STAGING = 64 << 20
"""Bytes of tiles that are packed on this machine before they go up to the device."""


@frozen
class Run:
    """Tiles of a product's part that follow one another."""

    part: int
    first: int
    tiles: int


@frozen(eq=False)
class Matrix:
    """A product's tiles on the device: all of them, or those of some of its results' columns."""

    buffer: cl.Buffer
    tile_bytes: int
    columns: int
    runs: tuple[Run, ...]
    """What lies in the buffer, one after the other; of a gated product the tiles of the gate and
    of what it is for in turn, so that a group which has one of each reads memory in one go."""
    first: int
    """The first tile of the results that it is for."""
    tiles: int
    """How many it is for."""


class Layouts:
    """How each matrix is kept: as its file has it, or as ``--dtype`` asks."""

    def __init__(self, tensors: Mapping[str, Tensor], options: LaneOptions) -> None:
        self._tensors = tensors
        self._options = options
        self._chosen: dict[str, str] = {}
        self._others: list[str] = []

    def of(self, name: str) -> str:
        """The layout of a weight, as the cpu lane would choose it, but never in 12 bits."""
        if name not in self._chosen:
            tensor, dtype = self._tensors[name], self._options.dtype
            chosen = choose_format(tensor, dtype, dot=False, compressed=False)
            self._chosen[name] = chosen.layout
            if not chosen.is_of(dtype):
                self._others.append(name)
        return self._chosen[name]

    def note_others(self) -> None:
        """Tells of matrices that could not be kept as they were to be."""
        others, dtype = self._others, self._options.dtype
        if others:
            self._options.progress.note(
                f"{len(others)} matrices are kept in bf16 instead of {dtype}, as their widths are "
                f"no multiples of 32: {', '.join(others[:3])}{', …' if len(others) > 3 else ''}"
            )


def definitions_of(layout: str) -> Mapping[str, int | str]:
    """What ``kernels/weights.cl`` has to know of a layout."""
    kept = LAYOUTS[layout]
    if not isinstance(kept, QuantLayout):
        return {"FORMAT": _FLOATS[layout]}
    return {
        "FORMAT": "QUANTS",
        "BITS": kept.bits,
        "GROUP": kept.group,
        "OFFSET": kept.offset,
        "MINIMA": int(kept.minima),
        "TWO_LEVEL": int(kept.two_level),
    }


def matrix_bytes(product: Product, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of a product's tiles."""
    layout = LAYOUTS[product.layout]
    return sum(
        packed_bytes(layout, part.out.width, tensors[part.weight].shape[-1])
        for part in product.parts
    )


def prepared_bytes(shape: Shape, layout: str, columns: int, tokens: int) -> int:
    """What a group makes of its tokens' columns first, as ``kernels/prepare.cl`` says."""
    if not shape.is_vector:
        return 0
    if isinstance(LAYOUTS[layout], QuantLayout):
        return tokens * columns // TILE_ROWS * 48
    return 4 * padded(columns, TILE_ROWS) if tokens == 1 else 0


def products(plan: Plan) -> list[Product]:
    """The products of a plan, in order."""
    return [item for item in (*plan.before, *plan.after) if isinstance(item, Product)]


def cut(product: Product, most: int) -> Iterator[tuple[Run, ...]]:
    """A product's tiles in as few lots as have at most so many tiles each.

    Those of a gate and of what it is for stay together.
    """
    counts = [tiles_of(part.out.width) for part in product.parts]
    if product.gate is not None:
        most //= 2
        for first in range(0, counts[0], most):
            count = min(most, counts[0] - first)
            yield Run(0, first, count), Run(1, first, count)
        return
    lot: list[Run] = []
    room = most
    for part, count in enumerate(counts):
        first = 0
        while first < count:
            taken = min(room, count - first)
            lot.append(Run(part, first, taken))
            first, room = first + taken, room - taken
            if not room:
                yield tuple(lot)
                lot, room = [], most
    if lot:
        yield tuple(lot)


class WeightStore:
    """Packs weights on this machine, some tiles at a time, and puts them on the device.

    The memory for matrices is taken at once: what does not fit is told before any is packed.
    """

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        context: Context,
        plan: Plan,
        progress: Progress = SILENT,
    ) -> None:
        self._tensors = tensors
        self._context = context
        self._progress = progress
        self._vectors: dict[tuple[str, float], cl.Buffer] = {}
        self._matrices = {product: self._reserved(product) for product in products(plan)}
        sizes = [min(run.tiles, step) * size for run, step, size in self._each_run()]
        self._staging = aligned.empty((max(sizes, default=0) // 4,)).view(np.uint8)

    def begin(self) -> None:
        """Tells of the work that is to be done, of which `matrices` tells the progress."""
        total = sum(-(-run.tiles // step) for run, step, _ in self._each_run())
        self._progress.begin("packing and uploading weights", total, unit="pieces")

    def _each_run(self) -> Iterator[tuple[Run, int, int]]:
        """All runs of tiles, how many tiles of each are packed at once, and a tile's bytes."""
        for matrices in self._matrices.values():
            for matrix in matrices:
                for run in matrix.runs:
                    yield run, _tiles_at_once(matrix), matrix.tile_bytes

    def is_whole(self, product: Product) -> bool:
        """Whether the device gave all of a product's tiles in one piece."""
        return len(self._matrices[product]) == 1

    def matrices(self, product: Product) -> Sequence[Matrix]:
        """The tiles of a product: one matrix, if the device gives so much in one piece."""
        for matrix in self._matrices[product]:
            at = 0
            for number, run in enumerate(matrix.runs):
                if product.gate is None:
                    self._upload(product, matrix, run, at, 1)
                else:
                    self._upload(product, matrix, run, number, 2)
                at += run.tiles
        for part in product.parts:
            release_pages(self._tensors[part.weight].data)
        return self._matrices[product]

    def _reserved(self, product: Product) -> Sequence[Matrix]:
        """Memory for a product's tiles. Raises LaneUnavailable, and pyopencl's errors."""
        columns = product.x.width
        tile_bytes = LAYOUTS[product.layout].tile_bytes(columns)
        together = 1 if product.gate is None else 2
        most = self._context.device.most_bytes // tile_bytes
        if most < together:
            raise LaneUnavailable(
                f"{self._context.device.name} gives at most {self._context.device.most_bytes} "
                f"bytes in one piece, and {TILE_ROWS} rows of {product.parts[0].weight} take more; "
                "use --backend cpu"
            )
        matrices, first = [], 0
        for runs in cut(product, most):
            tiles = sum(run.tiles for run in runs)
            buffer = self._context.allocate(tiles * tile_bytes)
            matrices.append(Matrix(buffer, tile_bytes, columns, runs, first, tiles // together))
            first += tiles // together
        return matrices

    def _upload(self, product: Product, matrix: Matrix, run: Run, at: int, apart: int) -> None:
        """Packs a run's tiles, and puts the first at tile ``at``, the others ``apart`` tiles on.

        As many are packed at once as may be.
        """
        layout, step = LAYOUTS[product.layout], _tiles_at_once(matrix)
        tensor = self._tensors[product.parts[run.part].weight].as_matrix()
        size = matrix.tile_bytes
        for done in range(0, run.tiles, step):
            count = min(step, run.tiles - done)
            part = _rows_of_tiles(tensor, run.first + done, count)
            if isinstance(layout, QuantLayout) and part.format.name != layout.name:
                part = quantized(part, layout.name)
            packed = self._staging[: count * size]
            pack_into(packed, part, layout)
            # A rectangle, whose lines are tiles. pyopencl's annotations have it by another name.
            rectangle: dict[str, Any] = {
                "buffer_origin": (at % apart * size, at // apart + done, 0),
                "host_origin": (0, 0, 0),
                "region": (size, count, 1),
                "buffer_pitches": (apart * size, 0),
            }
            cl.enqueue_copy(self._context.queue, matrix.buffer, packed, **rectangle)
            self._progress.advance(1)

    def vector(self, name: str, offset: float = 0.0) -> cl.Buffer:
        """A norm's weights."""
        key = name, offset
        if key not in self._vectors:
            values = self._tensors[name].to_float32() + np.float32(offset)
            self._vectors[key] = self._context.upload(_in_tiles(values))
        return self._vectors[key]

    def taps(self, operation: Convolve) -> cl.Buffer:
        """A convolution's weights, ``[taps][width]``."""
        weight = self._tensors[operation.weight].to_float32().reshape(-1, operation.taps)
        return self._context.upload(np.ascontiguousarray(weight.T))

    def rates(self, operation: DeltaRule) -> cl.Buffer:
        """A delta rule's rates, ``[heads]``."""
        rates = self._tensors[operation.rate].to_float32()
        return self._context.upload(np.exp(rates) if operation.in_log else -rates)

    def biases(self, product: Product, matrix: Matrix) -> cl.Buffer | None:
        """The biases of a product that go with some of its tiles; None for none."""
        names = [getattr(part, "bias", None) for part in product.parts]
        if not any(names):
            return None
        each = [
            np.zeros(width, np.float32)
            if name is None
            else _in_tiles(self._tensors[name].to_float32())
            for name, width in zip(names, product.widths, strict=True)
        ]
        taken = [
            each[run.part][TILE_ROWS * run.first : TILE_ROWS * (run.first + run.tiles)]
            for run in matrix.runs
        ]
        return self._context.upload(np.concatenate(taken))


def _rows_of_tiles(tensor: Tensor, first: int, count: int) -> Tensor:
    """The rows of a matrix that some of its tiles hold."""
    data = tensor.data[TILE_ROWS * first : TILE_ROWS * (first + count)]
    return evolve(tensor, shape=(len(data), tensor.shape[-1]), data=data)


def _tiles_at_once(matrix: Matrix) -> int:
    return max(1, STAGING // matrix.tile_bytes)


def other_bytes(plan: Plan, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all weights that are no part of a product or an embedding, at most."""
    matrices = {part.weight for product in products(plan) for part in product.parts}
    others = tensors.keys() - matrices - {plan.begin.weight}
    return sum(4 * padded(math.prod(tensors[name].shape), TILE_ROWS) for name in others)


def _in_tiles(values: Float32) -> Float32:
    out = np.zeros(padded(len(values), TILE_ROWS), np.float32)
    out[: len(values)] = values
    return out
