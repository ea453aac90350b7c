"""A model's weights in memory, in tiles."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from attrs import frozen

from caldrix.models.program import Convolve, DeltaRule
from caldrix.weights.blocks import UInt8
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import aligned
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.formats import Format
from caldrix_cpu.plan import Plan, Projection
from caldrix_cpu.tiles import bf12
from caldrix_cpu.tiles.layouts import LAYOUTS, QuantLayout, padded, tiles_of
from caldrix_cpu.tiles.pack import pack_into, packed_bytes
from caldrix_cpu.tiles.quantize import quantized


@frozen
class Matrix:
    """A product's weights: where their tiles begin."""

    address: int
    tile_bytes: int
    tiles: int
    columns: int
    size: int
    """Bytes, all of which are read for a token."""
    spilled: bool


class WeightStore:
    """Packs matrices one after another into memory, up to a budget, and the others into a file."""

    def __init__(
        self, tensors: Mapping[str, Tensor], memory: Arena, budget: int | None, spill: Arena | None
    ) -> None:
        self._tensors = tensors
        self._memory = memory
        self._budget = budget
        self._spill = spill
        self._vectors: dict[tuple[str, float, int], Float32] = {}
        self._kept: list[Float32] = []

    def matrix(self, item: Projection) -> Matrix:
        """The tiles of a product."""
        tensors = [self._prepared(name, item.format) for name in item.weights]
        columns = item.format.columns(tensors[0].shape[-1])
        counts = [tiles_of(len(tensor.data)) for tensor in tensors]
        tiles = sum(counts)
        if item.gate is not None:
            placed = [(tensor, index, len(tensors)) for index, tensor in enumerate(tensors)]
        else:
            firsts = np.cumsum([0, *counts[:-1]]).tolist()
            placed = [(tensor, first, 1) for tensor, first in zip(tensors, firsts, strict=True)]
        layout = LAYOUTS[item.format.layout]
        if item.format.layout == "BF12":
            plan = bf12.measure([bf12.Part(*each) for each in placed])
            out, spilled = self._take(int(plan.bounds[-1]))
            bf12.write(plan, out)
            tile_bytes = 0
        else:
            tile_bytes = layout.tile_bytes(columns)
            out, spilled = self._take(tiles * tile_bytes)
            for tensor, first, step in placed:
                pack_into(out, tensor, layout, first, step)
        for name in item.weights:
            release_pages(self._tensors[name].data)
        return Matrix(address(out), tile_bytes, tiles, columns, out.size, spilled)

    def vector(self, name: str, width: int, offset: float = 0.0) -> int:
        """The address of a norm's weights, padded with zeros to whole vectors."""
        key = name, offset, width
        if key not in self._vectors:
            self._vectors[key] = padded_vector(
                self._tensors[name].to_float32() + np.float32(offset)
            )
        return address(self._vectors[key])

    def table(self, name: str) -> int:
        """The address of a matrix in float32, each row padded with zeros to whole vectors."""
        values = self._tensors[name].to_float32()
        rows, width = values.shape
        table = aligned.empty((rows, padded(width, 16)))
        table[:, :width], table[:, width:] = values, 0
        self._kept.append(table)
        return address(table)

    def biases(self, item: Projection) -> int:
        """The address of a product's biases, each padded as its weights are; 0 for none."""
        if not any(item.biases):
            return 0
        parts = []
        for weight, bias in zip(item.weights, item.biases, strict=True):
            rows = len(self._tensors[weight].data)
            values = (
                np.zeros(rows, np.float32) if bias is None else self._tensors[bias].to_float32()
            )
            parts.append(padded_vector(values))
        return self._keep(np.concatenate(parts))

    def taps(self, operation: Convolve) -> int:
        """The address of a convolution's weights, ``[taps][width]``, padded to whole vectors."""
        weight = self._tensors[operation.weight].to_float32().reshape(-1, operation.taps)
        return self._keep(np.stack([padded_vector(tap) for tap in weight.T]))

    def rates(self, operation: DeltaRule) -> int:
        """The address of a delta rule's rates, ``[heads]``."""
        rates = self._tensors[operation.rate].to_float32()
        return self._keep(np.exp(rates) if operation.in_log else -rates)

    def _keep(self, values: Float32) -> int:
        self._kept.append(values)
        return address(values)

    def _prepared(self, name: str, format_: Format) -> Tensor:
        """The tensor, quantized first where it is to be."""
        tensor = self._tensors[name]
        layout = LAYOUTS[format_.layout]
        if isinstance(layout, QuantLayout) and tensor.format.name != layout.name:
            return quantized(tensor, layout.name)
        return tensor

    def _take(self, size: int) -> tuple[UInt8, bool]:
        if self._spill is None or self._budget is None:
            return self._memory.take(size), False
        if self._memory.used + size <= self._budget:
            return self._memory.take(size), False
        return self._spill.take(size), True


def most_bytes(plan: Plan, tensors: Mapping[str, Tensor]) -> int:
    """Bytes that the products of a plan take at most."""
    return sum(sum(_sizes(item, tensors)) for item in projections(plan))


def _sizes(item: Projection, tensors: Mapping[str, Tensor]) -> Iterator[int]:
    for name in item.weights:
        rows, columns = len(tensors[name].data), item.format.columns(tensors[name].shape[-1])
        yield padded(packed_bytes(LAYOUTS[item.format.layout], rows, columns), 64)


def projections(plan: Plan) -> Sequence[Projection]:
    """The products of a plan."""
    return [item for item in plan.items if isinstance(item, Projection)]


def padded_vector(values: Float32) -> Float32:
    """A copy, with zeros to the next multiple of 16."""
    out = np.zeros(padded(len(values), 16), np.float32)
    out[: len(values)] = values
    return out


def release_pages(data: UInt8) -> None:
    """Lets the system take back the pages of a mapped file that were read for ``data``."""
    root: object = data
    while isinstance(root, np.ndarray):
        root = root.base
    mapping = root.obj if isinstance(root, memoryview) else root
    if not isinstance(mapping, mmap.mmap) or not hasattr(mapping, "madvise"):
        return
    begin = data.ctypes.data - np.frombuffer(mapping, np.uint8).ctypes.data
    first = padded(begin, mmap.PAGESIZE)
    last = (begin + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        mapping.madvise(mmap.MADV_DONTNEED, first, last - first)
