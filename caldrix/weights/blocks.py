"""Block formats: how GGUF and safetensors files store values, and how to read them.

A quantized format stores a row as blocks; a block holds small integers and what scales them.
Reading has two steps. `unpack` gives the integers with one float32 scale (and, for some formats,
one minimum) for each group of values, which a lane can repack for its kernels; `decode` turns raw
bytes into float32, a bounded number of blocks at a time, so that a matrix needs no second copy of
itself.

Layouts and formulas are those of ggml's block structures (ggml-common.h, dequantize_row_*), and
decoded values equal the `gguf` package's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

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


Unpacker = Callable[[Records], Unpacked]


@frozen
class _Quantized:
    """A quantized format's record layout, and what takes its records apart."""

    layout: np.dtype[Any]
    unpack: Unpacker


def _fields(packed: UInt8, bits: int, run: int) -> UInt8:
    """Split bytes ``[n, m]`` into ``bits``-wide fields ``[n, m * 8 / bits]``.

    Every ``run`` bytes give 8 / bits runs of fields: first each byte's lowest bits, then the next.
    """
    runs = packed.reshape(len(packed), -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(-1, 1)
    return ((runs >> shifts) & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _float32(halves: Records) -> Float32:
    """A column of float16 as float32 ``[n, 1]``."""
    return halves.astype(np.float32)[:, None]


def _groups(quants: UInt8, offset: int, group_values: int) -> Int8:
    """Fields below 128 as signed quants ``[n, groups, group_values]``, ``offset`` taken off."""
    signed = quants.view(np.int8)
    if offset:
        signed = signed - np.int8(offset)
    return signed.reshape(len(quants), -1, group_values)


def _fifth_bits(blocks: Records) -> UInt8:
    """The fifth bit of each of a Q5_0 or Q5_1 block's 32 values, in its place: ``[n, 32]``."""
    return np.unpackbits(blocks["qh"], axis=1, bitorder="little") << np.uint8(4)


def _unpack_q4_0(blocks: Records) -> Unpacked:
    quants = _fields(blocks["qs"], 4, 16)
    return Unpacked(_groups(quants, 8, 32), _float32(blocks["d"]), None)


def _unpack_q4_1(blocks: Records) -> Unpacked:
    quants = _fields(blocks["qs"], 4, 16)
    return Unpacked(_groups(quants, 0, 32), _float32(blocks["d"]), _float32(blocks["m"]))


def _unpack_q5_0(blocks: Records) -> Unpacked:
    quants = _fields(blocks["qs"], 4, 16) | _fifth_bits(blocks)
    return Unpacked(_groups(quants, 16, 32), _float32(blocks["d"]), None)


def _unpack_q5_1(blocks: Records) -> Unpacked:
    quants = _fields(blocks["qs"], 4, 16) | _fifth_bits(blocks)
    return Unpacked(_groups(quants, 0, 32), _float32(blocks["d"]), _float32(blocks["m"]))


def _unpack_q8_0(blocks: Records) -> Unpacked:
    return Unpacked(blocks["qs"].reshape(-1, 1, 32), _float32(blocks["d"]), None)


def _unpack_q2_k(blocks: Records) -> Unpacked:
    quants = _fields(blocks["qs"], 2, 32)
    packed = blocks["scales"]
    return Unpacked(
        _groups(quants, 0, 16),
        _float32(blocks["d"]) * (packed & np.uint8(15)),
        -(_float32(blocks["dmin"]) * (packed >> np.uint8(4))),
    )


def _unpack_q3_k(blocks: Records) -> Unpacked:
    # A set mask bit stands for four, which the offset takes off again.
    quants = _fields(blocks["qs"], 2, 32) | (_fields(blocks["hmask"], 1, 32) << np.uint8(2))
    packed = blocks["scales"]
    scales = _fields(packed[:, :8], 4, 8) | (_fields(packed[:, 8:], 2, 4) << np.uint8(4))
    signed = scales.view(np.int8) - np.int8(32)
    return Unpacked(_groups(quants, 4, 16), _float32(blocks["d"]) * signed, None)


def _k_scales_and_minima(packed: UInt8) -> tuple[UInt8, UInt8]:
    """The 6-bit scales and minima of a Q4_K or Q5_K block's 8 groups, from its 12 bytes.

    The first four of each are the low bits of bytes 0 to 3 and 4 to 7. The last four have their low
    nibbles in bytes 8 to 11, and their two high bits on top of the first eight bytes.
    """
    first, nibbles = packed[:, :8] & np.uint8(63), packed[:, 8:]
    high = (packed[:, :8] >> np.uint8(2)) & np.uint8(0x30)
    scales = np.concatenate([first[:, :4], (nibbles & np.uint8(15)) | high[:, :4]], axis=1)
    minima = np.concatenate([first[:, 4:], (nibbles >> np.uint8(4)) | high[:, 4:]], axis=1)
    return scales, minima


def _unpacked_k(blocks: Records, quants: UInt8) -> Unpacked:
    scales, minima = _k_scales_and_minima(blocks["scales"])
    return Unpacked(
        _groups(quants, 0, 32),
        _float32(blocks["d"]) * scales,
        -(_float32(blocks["dmin"]) * minima),
    )


def _unpack_q4_k(blocks: Records) -> Unpacked:
    return _unpacked_k(blocks, _fields(blocks["qs"], 4, 32))


def _unpack_q5_k(blocks: Records) -> Unpacked:
    fifth = _fields(blocks["qh"], 1, 32) << np.uint8(4)
    return _unpacked_k(blocks, _fields(blocks["qs"], 4, 32) | fifth)


def _unpack_q6_k(blocks: Records) -> Unpacked:
    quants = _fields(blocks["ql"], 4, 64) | (_fields(blocks["qh"], 2, 32) << np.uint8(4))
    return Unpacked(_groups(quants, 32, 16), _float32(blocks["d"]) * blocks["scales"], None)


def _layout(*fields: tuple[str, str, int]) -> np.dtype[Any]:
    """A packed record of ``(name, type, count)`` fields, in the file's order."""
    return np.dtype([(name, kind) if n == 1 else (name, kind, (n,)) for name, kind, n in fields])


_D, _DMIN, _M = ("d", "<f2", 1), ("dmin", "<f2", 1), ("m", "<f2", 1)

_QUANTIZED: dict[str, _Quantized] = {
    "Q4_0": _Quantized(_layout(_D, ("qs", "u1", 16)), _unpack_q4_0),
    "Q4_1": _Quantized(_layout(_D, _M, ("qs", "u1", 16)), _unpack_q4_1),
    "Q5_0": _Quantized(_layout(_D, ("qh", "u1", 4), ("qs", "u1", 16)), _unpack_q5_0),
    "Q5_1": _Quantized(_layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16)), _unpack_q5_1),
    "Q8_0": _Quantized(_layout(_D, ("qs", "i1", 32)), _unpack_q8_0),
    "Q2_K": _Quantized(
        _layout(("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN),
        _unpack_q2_k,
    ),
    "Q3_K": _Quantized(
        _layout(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D),
        _unpack_q3_k,
    ),
    "Q4_K": _Quantized(
        _layout(_D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128)),
        _unpack_q4_k,
    ),
    "Q5_K": _Quantized(
        _layout(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
        _unpack_q5_k,
    ),
    "Q6_K": _Quantized(
        _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
        _unpack_q6_k,
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
