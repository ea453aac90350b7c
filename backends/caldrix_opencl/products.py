"""Products on the device: kernels for few and for many tokens, and chains of one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from attrs import frozen

from caldrix.models.program import Activation, RmsNorm
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded
from caldrix_opencl.addresses import Addresses
from caldrix_opencl.build import ACTIVATIONS, Builder, kernel_of
from caldrix_opencl.context import CPU, Context
from caldrix_opencl.launches import SEGMENT, Launch, ProductKernel, ProductLaunch
from caldrix_opencl.plan import Product, results
from caldrix_opencl.weights import Matrix, WeightStore, definitions_of, prepared_bytes

_MULTIPLYING = "weights", "activations", "prepare", "multiply"
"""What kernels of products consist of, after the lanes."""
_UNGATED = -1
COUNTERS = 2 * CPU.products + 5
"""What groups of a chain tell one another: two numbers for each of its products and for the two
operations of attention, and how many groups have left. All are zero between launches."""

_int, _ulong, _long, _float = np.int32, np.uint64, np.int64, np.float32

NO_ATTENTION = (
    *5 * (_ulong(0),), None, None, _float(0), None, None, *2 * (_int(0),), None, None,
    *5 * (_int(0),), _float(0), None,
)  # fmt: skip
"""Arguments of attention with no heads."""
_NO_PRODUCT = (
    None, _ulong(0), *2 * (_int(0),), *2 * (_ulong(0),), None, _long(-1), None, _float(0),
    _int(_UNGATED),
)  # fmt: skip


@frozen(eq=False)
class Packed:
    """A product, or some columns of its result, whose weights are on the device."""

    product: Product
    matrix: Matrix
    bias: cl.Buffer | None

    @property
    def column(self) -> int:
        """The first of the results that the matrix is for."""
        return TILE_ROWS * self.matrix.first


class Products:
    """Makes the launches of products."""

    def __init__(
        self,
        context: Context,
        builder: Builder,
        store: WeightStore,
        addresses: Addresses,
        arena: cl.Buffer,
    ) -> None:
        self._context = context
        self._shape = context.shape
        self._builder = builder
        self._store = store
        self._addresses = addresses
        self._arena = arena
        self._counters = context.upload(np.zeros(COUNTERS, np.int32))

    def packed(self, product: Product) -> list[Packed]:
        """A product with its weights: once for each piece of memory that they lie in."""
        return [
            Packed(product, matrix, self._store.biases(product, matrix))
            for matrix in self._store.matrices(product)
        ]

    def launch(self, packed: Packed, norm: Launch | None, *, inside: bool = True) -> ProductLaunch:
        """A product by itself, after its norm if it has one.

        The norm of one token is computed ``inside``, where a kernel can.
        """
        product, matrix = packed.product, packed.matrix
        kernels: list[ProductKernel] = []
        for tokens in self._shape.tokens:
            own = prepared_bytes(self._shape, product.layout, matrix.columns, tokens)
            if kernels and own > self._context.local_bytes:
                break
            program = self._builder.program(
                ["lanes", *_MULTIPLYING, "matmul"],
                {
                    "TOKENS": tokens,
                    "MANY": int(tokens == self._shape.many),
                    "TILES": self._shape.tiles,
                    **definitions_of(product.layout),
                    **_gating(product),
                },
            )
            each = self._context.tiles_each(matrix.tiles, tokens)
            normed = product.norm if inside and own and tokens == 1 else None
            kernel = kernel_of(
                program, "matmul",
                matrix.buffer, _ulong(matrix.tile_bytes), _int(matrix.columns),
                _int(matrix.tiles), _int(each), self._arena,
                *self._addresses.at((normed or product).x),
                *self._addresses.out(product, packed.column),
                packed.bias, *self._addresses.residual(product, packed.column),
                *((cl.LocalMemory(own), *self._norm(normed)) if own else ()),
            )  # fmt: skip
            kernels.append(ProductKernel(kernel, tokens, *self._items(matrix.tiles, tokens, each)))
        kind = product.layout, *_gating(product).values()
        return ProductLaunch(kind, kernels, norm)

    def _items(
        self, tiles: int, tokens: int, each: int
    ) -> tuple[tuple[int, int], tuple[int, int, int]]:
        """Work-items for some tiles, of which a group has ``each``, and those of a group."""
        shape = self._shape
        if tokens == shape.many:
            group = shape.lanes * shape.tiles
            return (padded(shape.lanes * tiles, group), 1), (group, 1, 1)
        groups = -(-tiles // each)
        return (shape.lanes * groups, shape.split), (shape.lanes, shape.split, 1)

    def chain(
        self,
        run: Sequence[Packed],
        kept: Mapping[str, int | str],
        attending: Sequence[Any] = NO_ATTENTION,
    ) -> cl.Kernel:
        """The products of one token in one kernel, after attention if there are arguments for it.

        ``kept`` says how a cache is laid out.
        """
        layout = run[0].product.layout
        # Attention has a head's columns and a tile there.
        own = 4 * (int(kept["DIM"]) + TILE_ROWS)
        arguments: list[Any] = []
        for packed in run:
            product, matrix = packed.product, packed.matrix
            own = max(own, prepared_bytes(self._shape, layout, matrix.columns, 1))
            x, _ = self._addresses.at((product.norm or product).x)
            out, _ = self._addresses.at(results(product)[0])
            residual, _ = self._addresses.residual(product)
            gate = _UNGATED if product.gate is None else ACTIVATIONS[product.gate.activation]
            arguments += (
                matrix.buffer, _ulong(matrix.tile_bytes), _int(matrix.columns),
                _int(matrix.tiles), x, out, packed.bias, residual, *self._norm(product.norm),
                _int(gate),
            )  # fmt: skip
        program = self._builder.program(
            ["lanes", "cache", "turn", "attend", *_MULTIPLYING, "chain"],
            {
                "TOKENS": 1,
                "HEADS": 1,
                "SEGMENT": SEGMENT,
                "PATIENCE": f"{self._shape.patience}ul",
                **definitions_of(layout),
                **kept,
            },
        )
        missing = CPU.products - len(run)
        return kernel_of(
            program, "chain",
            self._arena, cl.LocalMemory(own), self._counters, *attending, *arguments,
            *(_NO_PRODUCT * missing),
        )  # fmt: skip

    def _norm(self, norm: RmsNorm | None) -> tuple[cl.Buffer | None, np.float32]:
        if norm is None:
            return None, _float(0.0)
        return self._store.vector(norm.weight, norm.offset), _float(norm.eps)


def _gating(product: Product) -> Mapping[str, int | str]:
    gate = product.gate
    activation = Activation.SILU if gate is None else gate.activation
    return {"GATED": int(gate is not None), "ACTIVATION": ACTIVATIONS[activation]}
