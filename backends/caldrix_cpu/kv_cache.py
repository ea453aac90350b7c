"""Where a layer's keys and values lie: rings that `caldrix_cpu.codegen.attention` reads.

A layer with a window keeps its window, and beside it as much as one run of tokens writes before
the first of them attends.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from caldrix.models.program import KvCache
from caldrix.weights.blocks import UInt8
from caldrix_cpu.tape import SEGMENT
from caldrix_cpu.tiles.layouts import TILE_ROWS, padded

VALUE_BYTES = {"f16": 2, "f32": 4}


@frozen
class CacheLayout:
    """The sizes of one layer's cache."""

    ring: int
    """Positions that a row holds."""
    kv_heads: int
    padded_dim: int
    value_bytes: int
    windowed: bool
    """Whether the ring is shorter than the context."""

    @property
    def head_bytes(self) -> int:
        """Bytes of a head's keys, or of its values."""
        return self.ring * self.padded_dim * self.value_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's keys, or of its values."""
        return self.kv_heads * self.head_bytes


def layout_of(cache: KvCache, context: int, most_run: int, kv_dtype: str) -> CacheLayout:
    """The layout of a layer's cache for rows of ``context`` positions."""
    whole = padded(context, SEGMENT)
    ring = whole
    if cache.window is not None:
        ring = min(whole, padded(cache.window + most_run + SEGMENT, SEGMENT))
    return CacheLayout(
        ring=ring,
        kv_heads=cache.kv_heads,
        padded_dim=padded(cache.head_dim, TILE_ROWS),
        value_bytes=VALUE_BYTES[kv_dtype],
        windowed=ring < whole,
    )


@frozen(eq=False)
class Cache:
    """One layer's keys and values in memory, each ``[rows, kv_heads, head_bytes]`` bytes."""

    layout: CacheLayout
    window: int | None
    keys: UInt8
    values: UInt8

    def parts(self, row: int, length: int) -> Sequence[UInt8]:
        """Views of where a row's first ``length`` positions are, or those the ring still holds.

        Keys are tiles of 16 positions.
        """
        layout = self.layout
        # Up to the ring's size, each position's place is its number.
        places = min(layout.ring, padded(length, TILE_ROWS))
        size = places * layout.padded_dim * layout.value_bytes
        return [array[row, :, :size] for array in (self.keys, self.values)]


def bytes_of(layouts: Sequence[CacheLayout], rows: int) -> int:
    """Bytes of all caches."""
    return sum(2 * rows * layout.row_bytes for layout in layouts)
