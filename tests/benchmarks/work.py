"""What the OpenCL kernels move and compute: bytes and operations of each item of a plan.

Counted are the bytes that have to pass between the device and its memory if caches are perfect:
weights, keys and values once for each launch, and values as they are written and read. A multiply
and an add are two operations; exponentials, and what turns a weight's bits into a number, are none.
Attention that looks back far is made in segments that are merged: it is counted as one launch. A
norm that the plan has inside a product is a launch of its own, as it is on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from caldrix.models.program import Add, Attend, Gate, Part, Program, RmsNorm, Rope, Select, inputs
from caldrix_cpu.tiles.layouts import LAYOUTS, TILE_ROWS, padded, tiles_of
from caldrix_opencl.plan import Item, Norm, Plan, Product, Turn, make_plan, residual

FLOAT = 4
"""Bytes of a value."""


@frozen
class Work:
    """What one launch does."""

    kind: str
    """The kernel, and of products the format of their weights."""
    bytes: int
    flops: int


@frozen
class Decoding:
    """A step that each of some sequences takes by a token."""

    sequences: int
    depth: int
    """Positions that each of them held before."""
    kv_bytes: int = 2
    """Bytes of a number of the KV cache."""


def works_of(
    program: Program, layouts: Mapping[str, str], step: Decoding
) -> tuple[Plan, list[Work]]:
    """The plan of a Program, and what each launch does in a step, in order."""
    plan = make_plan(program, layouts.__getitem__)
    counter = _Counter(program, step)
    return plan, [work for item in (*plan.before, *plan.after) for work in counter.of(item)]


class _Counter:
    def __init__(self, program: Program, step: Decoding) -> None:
        self._program = program
        self._tokens = step.sequences
        self._depth = step.depth
        self._kv_bytes = step.kv_bytes

    def of(self, item: Item) -> list[Work]:
        """What its launches do. Raises ValueError for what only recurrent models have."""
        match item:
            case Product(norm=RmsNorm() as norm):
                return [self._norm(Norm(norm)), self._product(item)]
            case Product():
                return [self._product(item)]
            case Norm():
                return [self._norm(item)]
            case Turn():
                return [self._turn(item)]
            case Attend():
                return [self._attend(item)]
            case Rope() | Gate() | Add() | Part() | Select():
                return [self._columns(item)]
            case _:
                raise ValueError(f"the work of {item} is not counted")

    def _product(self, product: Product) -> Work:
        layout, columns = LAYOUTS[product.layout], product.x.width
        rows = sum(part.out.width for part in product.parts)
        weights = sum(tiles_of(part.out.width) for part in product.parts) * layout.tile_bytes(
            columns
        )
        written = rows // 2 if product.gate else rows
        added = written if residual(product) else 0
        return Work(
            f"matmul {product.layout}",
            weights + self._values(columns + written + added),
            self._tokens * (2 * rows * columns + added),
        )

    def _norm(self, norm: Norm) -> Work:
        """A square and its sum, the scale, the weight, and what is added."""
        width = norm.operation.x.width
        added = width if residual(norm) else 0
        weight = FLOAT * width // norm.operation.groups
        return Work(
            "rms_norm", weight + self._values(2 * width + added), self._tokens * (4 * width + added)
        )

    def _turn(self, turn: Turn) -> Work:
        """Norms of heads, three operations for each column that is turned, and what is kept."""
        attend = turn.attend
        q, k, v = attend.q.width, attend.k.width, attend.v.width
        read = q + k + v
        turned = flops = 0
        if turn.ropes is not None:
            pairs = len(turn.ropes[0].frequencies)
            head_dim = q // attend.heads
            read += 2 * pairs
            turned = 2 * pairs * (q + k) // head_dim
        for value, norm in zip((q, k), turn.norms, strict=True):
            flops += 4 * value if norm else 0
        kept = self._tokens * self._kv_bytes * self._kept(attend, 2)
        moved = self._values(read + (q if turn.ropes is not None else 0)) + kept
        return Work("turn", moved, self._tokens * (flops + 3 * turned))

    def _attend(self, attend: Attend) -> Work:
        """Each query head's scores and sums, over keys and values that heads share."""
        window = self._program.caches[attend.cache].window
        seen = min(self._depth + 1, window or self._depth + 1)
        cached = self._tokens * seen * self._kv_bytes * self._kept(attend, 2)
        return Work(
            "attend",
            cached + self._values(attend.q.width + attend.out.width),
            self._tokens * 4 * seen * attend.q.width,
        )

    def _kept(self, attend: Attend, each: int) -> int:
        """Numbers of so many vectors of all its key and value heads, in whole tiles."""
        cache = self._program.caches[attend.cache]
        return each * cache.kv_heads * padded(cache.head_dim, TILE_ROWS)

    def _columns(self, operation: Rope | Gate | Add | Part | Select) -> Work:
        """One operation on each column that is read beyond what is written."""
        read = sum(value.width for value in inputs(operation))
        written = operation.out.width
        if isinstance(operation, Part):
            read = written
        flops = written if isinstance(operation, Add | Gate) else 0
        if isinstance(operation, Rope):
            flops = 3 * 2 * len(operation.frequencies) * operation.heads
        kind = "pick" if isinstance(operation, Select) else type(operation).__name__.lower()
        return Work(kind, self._values(read + written), self._tokens * flops)

    def _values(self, count: int) -> int:
        """Bytes of so many values of each token."""
        return self._tokens * FLOAT * count
