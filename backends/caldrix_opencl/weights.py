"""Weights on the device: matrices in the tiles of the cpu lane, and vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pyopencl as cl
from attrs import frozen

from caldrix.models.lane import LaneOptions
from caldrix.models.program import Convolve, DeltaRule
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import aligned
from caldrix_cpu.formats import choose_format
from caldrix_cpu.tiles.layouts import LAYOUTS, TILE_ROWS, QuantLayout, padded, tiles_of
from caldrix_cpu.tiles.pack import pack_into, packed_bytes
from caldrix_cpu.tiles.quantize import quantized
from caldrix_cpu.weights import release_pages
from caldrix_opencl.context import Context
from caldrix_opencl.plan import Plan, Product

_FLOATS = {"F32": "FLOAT32", "F16": "FLOAT16", "BF16": "BFLOAT16"}


@frozen(eq=False)
class Matrix:
    """A product's tiles on the device."""

    buffer: cl.Buffer
    tile_bytes: int
    columns: int
    tiles: int


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


def products(plan: Plan) -> list[Product]:
    """The products of a plan, in order."""
    return [item for item in (*plan.before, *plan.after) if isinstance(item, Product)]


class WeightStore:
    """Packs weights on this machine, one product at a time, and puts them on the device."""

    def __init__(self, tensors: Mapping[str, Tensor], context: Context) -> None:
        self._tensors = tensors
        self._context = context
        self._vectors: dict[tuple[str, float], cl.Buffer] = {}

    def matrix(self, product: Product) -> Matrix:
        """The tiles of a product, its parts one after another."""
        layout = LAYOUTS[product.layout]
        columns = product.x.width
        packed = aligned.empty((matrix_bytes(product, self._tensors) // 4,)).view(np.uint8)
        first = 0
        for part in product.parts:
            tensor = self._tensors[part.weight]
            if isinstance(layout, QuantLayout) and tensor.format.name != layout.name:
                tensor = quantized(tensor, layout.name)
            pack_into(packed, tensor, layout, first)
            first += tiles_of(part.out.width)
            release_pages(self._tensors[part.weight].data)
        buffer = self._context.upload(packed)
        return Matrix(buffer, layout.tile_bytes(columns), columns, first)

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

    def biases(self, product: Product) -> cl.Buffer | None:
        """A product's biases, each padded as its tiles are; None for none."""
        names = [getattr(part, "bias", None) for part in product.parts]
        if not any(names):
            return None
        each = [
            np.zeros(width, np.float32) if name is None else self._tensors[name].to_float32()
            for name, width in zip(names, product.widths, strict=True)
        ]
        return self._context.upload(np.concatenate([_in_tiles(values) for values in each]))


def other_bytes(plan: Plan, tensors: Mapping[str, Tensor]) -> int:
    """Bytes of all weights that are no part of a product or an embedding, at most."""
    matrices = {part.weight for product in products(plan) for part in product.parts}
    others = tensors.keys() - matrices - {plan.begin.weight}
    return sum(4 * math.prod(tensors[name].shape) for name in others)


def _in_tiles(values: Float32) -> Float32:
    out = np.zeros(padded(len(values), TILE_ROWS), np.float32)
    out[: len(values)] = values
    return out
