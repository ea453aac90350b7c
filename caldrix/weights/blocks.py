"""Block formats: how GGUF and safetensors files store values, and how to read them.

A quantized format stores a row as blocks; a block holds small integers and what scales them.
Reading has three steps, each written over the one before. `levels` spreads the bits of a block and
changes no number, so a lane can repack them for its kernels without loss. `unpack` gives the
integers with one float32 scale (and, for some formats, one minimum) for each group of values.
`decode` turns raw bytes into float32, a bounded number of blocks at a time, so that a matrix needs
no second copy of itself.

Layouts and formulas are those of ggml's block structures (ggml-common.h, dequantize_row_*), and
decoded values equal the `gguf` package's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

Float16 = npt.NDArray[np.float16]
Float32 = npt.NDArray[np.float32]
Int8 = npt.NDArray[np.int8]
UInt8 = npt.NDArray[np.uint8]
# A one-dimensional structured array: one record for each block.
Records = npt.NDArray[Any]

# Values decoded at a time: their float32 stay in a core's second-level cache.
_CHUNK_VALUES = 1 << 16


@frozen
class BlockFormat:
    """How a run of values is stored.

    ``block_values`` consecutive values of a row take ``block_bytes`` bytes; a plain type such as
    F16 has blocks of one value.
    """

    name: str
    block_values: int
    block_bytes: int


@frozen(eq=False)
class Levels:
    """Blocks taken apart, each number as the file holds it.

    A value of one-level formats is ``d * (quant - offset) + m``. Two-level formats, whose ``sc``
    is not None, have a small scale and perhaps a small minimum for each group of values:
    ``d * sc * (quant - offset) - m * mn``. The format fixes the offset. Without minima ``m`` and
    ``mn`` are None.
    """

    quants: UInt8
    """``[blocks, block_values]``, in the values' order; Q8_0's signed bytes are moved up by 128."""
    d: Float16
    """``[blocks]``."""
    m: Float16 | None = None
    """``[blocks]``; ggml calls it ``dmin`` where there are two levels."""
    sc: Int8 | None = None
    """``[blocks, groups]``."""
    mn: UInt8 | None = None
    """``[blocks, groups]``."""


@frozen(eq=False)
class Unpacked:
    """Blocks taken apart: ``value[b, g, i] = scales[b, g] * quants[b, g, i] + minima[b, g]``.

    ``quants`` is int8 ``[blocks, groups, group_values]``; ``scales`` and ``minima`` are float32
    ``[blocks, groups]``. ``minima`` is None for formats without one. The products of a K-quant's
    two-level scales fit float32 exactly, so nothing is lost.
    """

    quants: Int8
    scales: Float32
    minima: Float32 | None

    def write_float32(self, out: Float32) -> None:
        """Write the values into ``out``, ``[blocks, groups * group_values]`` and contiguous."""
        values = out.reshape(self.quants.shape)
        values[...] = self.quants
        values *= self.scales[:, :, None]
        if self.minima is not None:
            values += self.minima[:, :, None]


@frozen
class _Quantized:
    """A quantized format's record layout, and what its numbers mean."""

    layout: np.dtype[Any]
    levels: Callable[[Records], Levels]
    offset: int
    """What is taken off a quant as it is stored."""
    group_values: int
    """Values that share a scale."""

    def unpack(self, blocks: Records) -> Unpacked:
        levels = self.levels(blocks)
        # uint8 wraps around, so that what falls below zero reads as a negative int8.
        quants = levels.quants - np.uint8(self.offset) if self.offset else levels.quants
        scales, minima = _column(levels.d), None if levels.m is None else _column(levels.m)
        if levels.sc is not None:
            scales = scales * levels.sc
        if minima is not None and levels.mn is not None:
            minima = -(minima * levels.mn)
        groups = quants.view(np.int8).reshape(len(quants), -1, self.group_values)
        return Unpacked(groups, scales, minima)


def _column(halves: Float16) -> Float32:
    """Float16 ``[n]`` as float32 ``[n, 1]``."""
    return halves.astype(np.float32)[:, None]


def _fields(packed: UInt8, bits: int, run: int) -> UInt8:
    """Split bytes ``[n, m]`` into ``bits``-wide fields ``[n, m * 8 / bits]``.

    Every ``run`` bytes give 8 / bits runs of fields: first each byte's lowest bits, then the next.
    """
    # A run moves as one opaque item: numpy is slow on rows of a few bytes.
    item = np.dtype((np.void, run))
    packed = np.ascontiguousarray(packed)
    fields = np.empty((len(packed), packed.shape[1] // run, 8 // bits), item)
    mask = np.uint8((1 << bits) - 1)
    for at in range(8 // bits):
        fields[:, :, at] = ((packed >> np.uint8(bits * at)) & mask).view(item)
    return fields.view(np.uint8).reshape(len(packed), -1)


def _fifth_bits(blocks: Records) -> UInt8:
    """The fifth bit of each of a Q5_0 or Q5_1 block's 32 values, in its place: ``[n, 32]``."""
    return np.unpackbits(blocks["qh"], axis=1, bitorder="little") << np.uint8(4)


def _levels_q4_0(blocks: Records) -> Levels:
    return Levels(_fields(blocks["qs"], 4, 16), blocks["d"])


def _levels_q4_1(blocks: Records) -> Levels:
    return Levels(_fields(blocks["qs"], 4, 16), blocks["d"], blocks["m"])


def _levels_q5_0(blocks: Records) -> Levels:
    return Levels(_fields(blocks["qs"], 4, 16) | _fifth_bits(blocks), blocks["d"])


def _levels_q5_1(blocks: Records) -> Levels:
    return Levels(_fields(blocks["qs"], 4, 16) | _fifth_bits(blocks), blocks["d"], blocks["m"])


def _levels_q8_0(blocks: Records) -> Levels:
    # Flipping the highest bit of an int8 adds 128 to it.
    return Levels(blocks["qs"] ^ np.uint8(128), blocks["d"])


def _levels_q2_k(blocks: Records) -> Levels:
    packed = blocks["scales"]
    return Levels(
        _fields(blocks["qs"], 2, 32),
        blocks["d"],
        blocks["dmin"],
        (packed & np.uint8(15)).view(np.int8),
        packed >> np.uint8(4),
    )


def _levels_q3_k(blocks: Records) -> Levels:
    # A set mask bit stands for four, which the offset takes off again.
    quants = _fields(blocks["qs"], 2, 32) | (_fields(blocks["hmask"], 1, 32) << np.uint8(2))
    packed = blocks["scales"]
    scales = _fields(packed[:, :8], 4, 8) | (_fields(packed[:, 8:], 2, 4) << np.uint8(4))
    return Levels(quants, blocks["d"], sc=scales.view(np.int8) - np.int8(32))


def _k_scales_and_minima(packed: UInt8) -> tuple[Int8, UInt8]:
    """The 6-bit scales and minima of a Q4_K or Q5_K block's 8 groups, from its 12 bytes.

    The first four of each are the low bits of bytes 0 to 3 and 4 to 7. The last four have their low
    nibbles in bytes 8 to 11, and their two high bits on top of the first eight bytes.
    """
    first, nibbles = packed[:, :8] & np.uint8(63), packed[:, 8:]
    high = (packed[:, :8] >> np.uint8(2)) & np.uint8(0x30)
    scales = np.concatenate([first[:, :4], (nibbles & np.uint8(15)) | high[:, :4]], axis=1)
    minima = np.concatenate([first[:, 4:], (nibbles >> np.uint8(4)) | high[:, 4:]], axis=1)
    return scales.view(np.int8), minima


def _levels_q4_k(blocks: Records) -> Levels:
    scales, minima = _k_scales_and_minima(blocks["scales"])
    return Levels(_fields(blocks["qs"], 4, 32), blocks["d"], blocks["dmin"], scales, minima)


def _levels_q5_k(blocks: Records) -> Levels:
    scales, minima = _k_scales_and_minima(blocks["scales"])
    quants = _fields(blocks["qs"], 4, 32) | (_fields(blocks["qh"], 1, 32) << np.uint8(4))
    return Levels(quants, blocks["d"], blocks["dmin"], scales, minima)


def _levels_q6_k(blocks: Records) -> Levels:
    quants = _fields(blocks["ql"], 4, 64) | (_fields(blocks["qh"], 2, 32) << np.uint8(4))
    return Levels(quants, blocks["d"], sc=blocks["scales"])


def _layout(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    """A packed record of ``(name, type, count)`` fields, in the file's order."""
    return np.dtype([(name, kind) if n == 1 else (name, kind, (n,)) for name, kind, n in fields])


_D, _DMIN, _M = ("d", "<f2", 1), ("dmin", "<f2", 1), ("m", "<f2", 1)

_QUANTIZED: dict[str, _Quantized] = {
    "Q4_0": _Quantized(_layout(_D, ("qs", "u1", 16)), _levels_q4_0, 8, 32),
    "Q4_1": _Quantized(_layout(_D, _M, ("qs", "u1", 16)), _levels_q4_1, 0, 32),
    "Q5_0": _Quantized(_layout(_D, ("qh", "u1", 4), ("qs", "u1", 16)), _levels_q5_0, 16, 32),
    "Q5_1": _Quantized(_layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16)), _levels_q5_1, 0, 32),
    "Q8_0": _Quantized(_layout(_D, ("qs", "u1", 32)), _levels_q8_0, 128, 32),
    "Q2_K": _Quantized(
        _layout(("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN),
        _levels_q2_k,
        offset=0,
        group_values=16,
    ),
    "Q3_K": _Quantized(
        _layout(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D),
        _levels_q3_k,
        offset=4,
        group_values=16,
    ),
    "Q4_K": _Quantized(
        _layout(_D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128)),
        _levels_q4_k,
        offset=0,
        group_values=32,
    ),
    "Q5_K": _Quantized(
        _layout(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
        _levels_q5_k,
        offset=0,
        group_values=32,
    ),
    "Q6_K": _Quantized(
        _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
        _levels_q6_k,
        offset=32,
        group_values=16,
    ),
}

_PLAIN_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

# Every format whose values can be decoded, by ggml's name for it.
FORMATS: dict[str, BlockFormat] = {
    **{name: BlockFormat(name, 1, size) for name, size in _PLAIN_BYTES.items()},
    **{
        name: BlockFormat(name, 256 if name.endswith("_K") else 32, quantized.layout.itemsize)
        for name, quantized in _QUANTIZED.items()
    },
}


def is_quantized(block_format: BlockFormat) -> bool:
    """Whether `unpack` takes this format, which then stores integers and scales."""
    return block_format.name in _QUANTIZED


def levels(block_format: BlockFormat, data: UInt8) -> Levels:
    """Spread a quantized format's raw bytes, every block of ``data`` in order, without arithmetic.

    ``data`` is as `unpack` takes it; some results may be views of it. Raises KeyError for a format
    that is not quantized (see `is_quantized`).
    """
    quantized = _QUANTIZED[block_format.name]
    return quantized.levels(_records(data, quantized.layout))


def unpack(block_format: BlockFormat, data: UInt8) -> Unpacked:
    """Take a quantized format's raw bytes apart, every block of ``data`` in order.

    ``data`` is uint8 of any shape whose rows are whole blocks. Raises KeyError for a format that is
    not quantized (see `is_quantized`).
    """
    quantized = _QUANTIZED[block_format.name]
    return quantized.unpack(_records(data, quantized.layout))


def decode(block_format: BlockFormat, data: UInt8) -> Float32:
    """Decode ``data``, uint8 ``[rows, row_bytes]``, into a new float32 ``[rows, row_values]``.

    Raises KeyError for a format that is not in `FORMATS`.
    """
    rows, row_bytes = data.shape
    row_values = row_bytes // block_format.block_bytes * block_format.block_values
    out = np.empty((rows, row_values), dtype=np.float32)
    if block_format.name in _PLAIN_BYTES:
        _decode_plain(block_format.name, np.ascontiguousarray(data), out)
    else:
        _decode_quantized(_QUANTIZED[block_format.name], data, out)
    return out


def _decode_plain(name: str, data: UInt8, out: Float32) -> None:
    if name == "BF16":
        # A bfloat16 is the upper half of the float32 it stands for.
        bits = out.view(np.uint32)
        bits[...] = data.view("<u2")
        bits <<= np.uint32(16)
    else:
        out[...] = data.view("<f4" if name == "F32" else "<f2")


def _decode_quantized(quantized: _Quantized, data: UInt8, out: Float32) -> None:
    records = _records(data, quantized.layout)
    if not len(records):
        return
    values = out.reshape(len(records), -1)
    step = max(1, _CHUNK_VALUES // values.shape[1])
    for start in range(0, len(records), step):
        chunk = slice(start, start + step)
        quantized.unpack(records[chunk]).write_float32(values[chunk])


def _records(data: UInt8, layout: np.dtype[Any]) -> Records:
    return np.ascontiguousarray(data).reshape(-1).view(layout)
