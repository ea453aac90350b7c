"""Bfloat16 in 12 bits a value, losslessly.

Weights near each other have exponents near each other. Where the 512 values of a block (16 rows by
32 columns) have exponents at most 14 below the largest, or are zero, each value needs its sign and
mantissa, eight bits, and the distance of its exponent from a base, four bits: three quarters of
the bytes, and reading them is what bounds the time of a token. Other blocks stay as they are.

A buffer holds whole tiles, all of the same columns (a multiple of 32):

- a table: for each tile the int64 offset of its first byte from the buffer's; padded with zeros to
  a cache line. Tiles lie in the table's order.
- each tile: a header, one uint16 for each block, padded with zeros to a cache line; then its blocks
  one after another.

A plain block (header 0xFFFF, 1024 bytes) has a vector for each pair of columns, ``[16 rows][2]``
of bfloat16, as in the BF16 layout. A compressed block (768 bytes) has the header ``base << 7``,
where ``base = max(largest exponent of the block - 15, 0)``, and holds

- 16 vectors of 32 bytes, ``[16 rows][2]`` for each pair: ``sign << 7 | mantissa``;
- 8 vectors of 32 bytes, ``[16 rows][2]`` of nibbles, ``exponent - base`` or, for the exponent 0
  of zeros and subnormals, 0: vector ``v`` has pair ``2 * v`` in its low nibbles and pair
  ``2 * v + 1`` in its high ones.

So a value's bits are ``sign << 15 | exponent << 7 | mantissa``, where the exponent is 0 for the
nibble 0 and ``base + nibble`` for others. Measured on matrices rounded to bfloat16, the blocks
that fit and the bytes that remain of plain bfloat16:

===============================================  ========  =====
all-MiniLM-L6-v2, float32 as trained                93.3%  77.2%
a normal distribution, for comparison               94.3%  76.6%
SmolLM2 135M, decoded from Q4_1 and Q8_0            99.8%  75.4%
Gemma 3 270M, decoded from Q4_K and others      98 - 100%  75.7%
===============================================  ========  =====

Without a nibble for zeros the first would be 96.5%, but decoded Q8_0, Q5_0 and Q6_K next to 0%:
they hold many exact zeros, and one of them would keep its block plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from caldrix.weights.blocks import UInt8
from caldrix.weights.tensor import Tensor
from caldrix_cpu import aligned
from caldrix_cpu.tiles.floats import UInt16, float_bits
from caldrix_cpu.tiles.layouts import BLOCK, LINE, TILE_ROWS, padded, tiles_of
from caldrix_cpu.tiles.runs import matrix_shape, runs, whole_tiles

PLAIN: Final = 0xFFFF
"""The header of a block that is stored as it is."""
PLAIN_BYTES: Final = 1024
COMPRESSED_BYTES: Final = 768

_PIECE_BYTES = PLAIN_BYTES - COMPRESSED_BYTES
_EXPONENT, _MANTISSA, _SIGN = np.uint16(0x7F80), np.uint16(0x7F), np.uint16(0x80)
_REACH = np.uint16(15 << 7)
_OFFSET_BYTES, _HEADER_BYTES = 8, 2


@frozen(eq=False)
class Part:
    """A matrix, and where its tiles go: tile ``t`` at place ``first + step * t`` of the buffer."""

    tensor: Tensor
    first: int = 0
    step: int = 1

    @property
    def places(self) -> slice:
        """The places of its tiles, in their order."""
        return slice(
            self.first, self.first + self.step * tiles_of(len(self.tensor.data)), self.step
        )


@frozen(eq=False)
class Plan:
    """What a buffer is to hold, measured on the values."""

    parts: Sequence[Part]
    headers: UInt16
    """``[tiles, blocks]``, by the tiles' places."""

    @property
    def share_that_fits(self) -> float:
        """The share of blocks that are compressed, from 0 to 1."""
        return float((self.headers != PLAIN).mean())

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Where each tile begins, and where the buffer ends: ``[tiles + 1]``."""
        tiles, blocks = self.headers.shape
        plain = (self.headers == PLAIN).sum(axis=1, dtype=np.int64)
        sizes = _headers_bytes(blocks) + COMPRESSED_BYTES * blocks + _PIECE_BYTES * plain
        bounds = np.full(tiles + 1, _table_bytes(tiles), np.int64)
        bounds[1:] += np.cumsum(sizes)
        return bounds


def takes(columns: int) -> bool:
    """Whether rows of so many columns can be stored so."""
    return columns > 0 and columns % BLOCK == 0


def most_bytes(rows: int, columns: int) -> int:
    """Bytes of a matrix of which no block is compressed."""
    tiles, blocks = tiles_of(rows), columns // BLOCK
    return _table_bytes(tiles) + tiles * (_headers_bytes(blocks) + blocks * PLAIN_BYTES)


def compress(parts: Sequence[Part]) -> UInt8:
    """Matrices of the same columns, in any format, as one buffer that begins on a cache line.

    Values that aren't bfloat16 are rounded (`float_bits`). Raises ValueError where columns differ
    or are not multiples of 32, or where the places are not each taken once, and LaneUnavailable
    for a value that is past the largest bfloat16.
    """
    return write(measure(parts))


def measure(parts: Sequence[Part]) -> Plan:
    """Find out which blocks can be compressed; raises as `compress` does."""
    shapes = [matrix_shape(part.tensor) for part in parts]
    columns = shapes[0][1]
    if not takes(columns) or any(each != columns for _, each in shapes):
        raise ValueError(f"columns must be equal, and multiples of {BLOCK}: {shapes}")
    tiles = sum(tiles_of(rows) for rows, _ in shapes)
    taken = np.zeros(tiles, np.intp)
    for part in parts:
        taken[part.places] += 1
    if not (taken == 1).all():
        raise ValueError(f"tiles leave places open or take them twice: {taken}")

    headers = np.empty((tiles, columns // BLOCK), np.uint16)
    for part in parts:
        own = headers[part.places]
        for run, bits in _bits_by_run(part.tensor):
            own[run] = _headers(bits)
    return Plan(parts, headers)


def write(plan: Plan, out: UInt8 | None = None) -> UInt8:
    """The buffer of a plan, in ``out`` or new; raises LaneUnavailable as `compress` does."""
    tiles, blocks = plan.headers.shape
    bounds = plan.bounds
    if out is None:
        out = aligned.empty((int(bounds[-1]) // 4,)).view(np.uint8)
    out[: bounds[0]] = 0
    out[: tiles * _OFFSET_BYTES].view(np.int64)[...] = bounds[:-1]
    for part in plan.parts:
        places = np.arange(tiles)[part.places]
        for run, bits in _bits_by_run(part.tensor):
            headers = plan.headers[places[run]]
            body = _blocks(bits, headers)
            for place, header in zip(places[run], headers, strict=True):
                tile = out[bounds[place] : bounds[place + 1]]
                tile[: blocks * _HEADER_BYTES] = header.view(np.uint8)
                tile[blocks * _HEADER_BYTES : _headers_bytes(blocks)] = 0
                size = tile.size - _headers_bytes(blocks)
                tile[_headers_bytes(blocks) :] = body[:size]
                body = body[size:]
    return out


def _table_bytes(tiles: int) -> int:
    return padded(tiles * _OFFSET_BYTES, LINE)


def _headers_bytes(blocks: int) -> int:
    return padded(blocks * _HEADER_BYTES, LINE)


def _bits_by_run(tensor: Tensor) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
    """Runs of tiles, each with its bfloat16 bits ``[tiles, 16, columns]``."""
    rows, columns = matrix_shape(tensor)
    for run in runs(rows, columns):
        yield run.tiles, whole_tiles(float_bits(tensor, "BF16", run.rows), columns)


def _headers(bits: UInt16) -> UInt16:
    """The header of each block, ``[tiles, blocks]``."""
    exponents = bits & _EXPONENT
    by_block = (len(bits), -1, BLOCK)
    highest = exponents.max(axis=1).reshape(by_block).max(axis=2)
    # Zeros take no part: seen as the largest exponent, they never are the smallest.
    lowest = (
        np.where(exponents == 0, _EXPONENT, exponents).min(axis=1).reshape(by_block).min(axis=2)
    )
    base = highest - np.minimum(highest, _REACH)
    return np.where(lowest > base, base, np.uint16(PLAIN))


def _blocks(bits: UInt16, headers: UInt16) -> UInt8:
    """The bytes of a run's blocks, one after another."""
    # A pair moves as one number of four bytes.
    pairs = np.ascontiguousarray(bits.view(np.uint32).transpose(0, 2, 1))
    values = pairs.view(np.uint16).reshape(headers.size, TILE_ROWS * BLOCK)
    plain = headers.reshape(-1) == PLAIN
    stored = np.empty((headers.size, PLAIN_BYTES), np.uint8)
    _compress(stored[:, :COMPRESSED_BYTES], values, headers.reshape(-1, 1))
    stored[plain] = values[plain].view(np.uint8)
    # A compressed block is three pieces of the four that a plain one has.
    pieces = stored.reshape(headers.size, 4, _PIECE_BYTES)
    kept = np.ones((headers.size, 4), np.bool_)
    kept[:, 3] = plain
    return pieces[kept].reshape(-1)


def _compress(out: UInt8, values: UInt16, bases: UInt16) -> None:
    """Write blocks ``[blocks, 512]``, in the order of their pairs, as ``[blocks, 768]`` bytes.

    What it writes for a block that does not fit means nothing.
    """
    rests, nibbles = out[:, : values.shape[1]], out[:, values.shape[1] :]
    rests[...] = ((values >> 8) & _SIGN) | (values & _MANTISSA)
    exponents = values & _EXPONENT
    distances = (np.where(exponents == 0, 0, exponents - bases) >> 7).astype(np.uint8)
    by_pairs = distances.reshape(-1, BLOCK // 4, 2, 2 * TILE_ROWS)
    packed = by_pairs[:, :, 0] | (by_pairs[:, :, 1] << np.uint8(4))
    nibbles[...] = packed.reshape(nibbles.shape)
