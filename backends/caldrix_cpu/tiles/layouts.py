"""How a weight matrix lies in memory for the compiled kernels.

A matrix ``[rows, columns]`` is cut into tiles of 16 output rows, padded with zero rows. Within a
tile the 16 rows are the lanes of a vector: one vector load brings the same column (or the same
few columns) of 16 rows, so a dot product needs no sum across lanes, and the same tile serves one
token, a batch and a prefill.

Every tile begins on a cache line, and every region within a tile is padded to one.

**Quantized formats** (`QuantLayout`). A block is 32 columns; columns are a multiple of 32. A value
is ``scale * (q - offset)`` or ``scale * q + minimum``, with an unsigned ``q`` of `bits` bits.
A tile has three regions, in this order:

1. ``supers``, of two-level formats alone: for each 256 columns the float16 ``d[16]``, and, where
   there are minima, the float16 ``dmin[16]``.
2. ``scales``. One level: for each block the float16 ``d[16]``, then, with minima, the float16
   ``m[16]``. Two levels: for each group (of `group` columns: 16 or 32) the int8 ``sc[16]``, then,
   with minima, the uint8 ``mn[16]``. A group's scale is ``d * sc`` and its minimum ``-dmin * mn``.
3. ``quants``: for each block its planes. A plane of ``b`` bits has ``b`` vectors ``[16 rows][4]``
   of bytes. Cut a block's 32 columns into eight runs of four: byte ``i`` of row ``r`` in vector
   ``v`` holds column ``4 * (v + b * f) + i`` in bits ``b * f`` to ``b * f + b - 1``, for each
   ``f`` below ``8 / b``. `PLANES` gives each width's planes, lowest bits of ``q`` first; so the
   nibbles of Q4_0 and Q4_1 lie as in their files.

**Float formats** (`FloatLayout`): the columns one after another, each ``[16 rows]``, padded with
zeros to a multiple of four; bfloat16 in pairs, ``[columns / 2][16 rows][2]``, as the processors'
dot instruction takes them. `BF16` with `compressed` is described in `caldrix_cpu.tiles.bf12`.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

TILE_ROWS = 16
LINE = 64
"""Bytes of a cache line."""
BLOCK = 32
"""Columns of a block, for which activations share a scale."""
SUPERBLOCK = 256

PLANES: Mapping[int, tuple[int, ...]] = {
    2: (2,),
    3: (2, 1),
    4: (4,),
    5: (4, 1),
    6: (4, 2),
    8: (8,),
}
"""The planes that hold a ``q`` of so many bits, lowest bits first."""


def padded(size: int, multiple: int) -> int:
    """The next multiple at or above ``size``."""
    return -(-size // multiple) * multiple


def tiles_of(rows: int) -> int:
    """Tiles that hold so many rows."""
    return -(-rows // TILE_ROWS)


@frozen
class QuantLayout:
    """A quantized format's tile; see the module."""

    name: str
    bits: int
    offset: int = 0
    group: int = BLOCK
    """Columns that share a scale: 16 or 32."""
    two_level: bool = False
    minima: bool = False

    @property
    def block_scale_bytes(self) -> int:
        """Bytes in the scales region for each block."""
        each = TILE_ROWS * (1 if self.two_level else 2) * (2 if self.minima else 1)
        return each * (BLOCK // self.group)

    @property
    def block_quant_bytes(self) -> int:
        """Bytes in the quants region for each block."""
        return TILE_ROWS * BLOCK * self.bits // 8

    @property
    def super_bytes(self) -> int:
        """Bytes in the supers region for each 256 columns."""
        return TILE_ROWS * 2 * (2 if self.minima else 1) if self.two_level else 0

    def scales_at(self, columns: int) -> int:
        """Where the scales region begins in a tile."""
        return padded(columns // SUPERBLOCK * self.super_bytes, LINE)

    def quants_at(self, columns: int) -> int:
        """Where the quants region begins in a tile."""
        scales = columns // BLOCK * self.block_scale_bytes
        return self.scales_at(columns) + padded(scales, LINE)

    def tile_bytes(self, columns: int) -> int:
        """Bytes from one tile to the next."""
        quants = columns // BLOCK * self.block_quant_bytes
        return self.quants_at(columns) + padded(quants, LINE)

    def takes(self, columns: int) -> bool:
        """Whether rows of so many columns can be laid out so."""
        return columns % (SUPERBLOCK if self.two_level else BLOCK) == 0


@frozen
class FloatLayout:
    """A float format's tile; see the module."""

    name: str
    value_bytes: int
    compressed: bool = False

    def tile_bytes(self, columns: int) -> int:
        """Bytes from one tile to the next; of a compressed layout, the most a tile can have."""
        return TILE_ROWS * self.value_bytes * padded(columns, 4)


Layout = QuantLayout | FloatLayout

LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        FloatLayout("F32", 4),
        FloatLayout("F16", 2),
        FloatLayout("BF16", 2),
        FloatLayout("BF12", 2, compressed=True),
        # q holds the int8 of the file plus 128.
        QuantLayout("Q8_0", 8, offset=128),
        QuantLayout("Q4_0", 4, offset=8),
        QuantLayout("Q4_1", 4, minima=True),
        QuantLayout("Q5_0", 5, offset=16),
        QuantLayout("Q5_1", 5, minima=True),
        QuantLayout("Q2_K", 2, group=16, two_level=True, minima=True),
        QuantLayout("Q3_K", 3, offset=4, group=16, two_level=True),
        QuantLayout("Q4_K", 4, two_level=True, minima=True),
        QuantLayout("Q5_K", 5, two_level=True, minima=True),
        QuantLayout("Q6_K", 6, offset=32, group=16, two_level=True),
    )
}
"""Every layout by its name; a GGUF format's is the format's own."""
