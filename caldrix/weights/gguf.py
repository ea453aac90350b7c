"""Reading GGUF: one file with a model's metadata, its tokenizer and its tensors.

The `gguf` package's reader trusts the file (a count or an offset is used as it comes) and takes
seconds for a vocabulary of 260,000 tokens. This one checks every size against the file before it
takes memory, and leaves tensors mapped. The package stays as the tests' reference.

Layout (ggml's docs/gguf.md), all little-endian: magic, version, tensor count, key count; the keys,
each with a type and a value; the tensors' descriptions; padding; the tensors' data.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from attrs import frozen

from caldrix.weights.blocks import FORMATS, BlockFormat
from caldrix.weights.directory import ModelDirectory
from caldrix.weights.errors import CorruptFile, printable
from caldrix.weights.mapped import MappedTensors, map_file
from caldrix.weights.metadata import Metadata
from caldrix.weights.tensor import Tensor

MAGIC = b"GGUF"

_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
# Arrays become Python lists, which take many times their bytes. Real files have some 1.3 million
# values in all: a vocabulary's tokens, scores, types and merges.
_MAX_ARRAY_VALUES = 1 << 24
# An empty key with a one-byte value; an unnamed tensor without dimensions; an empty string.
_SMALLEST_KEY, _SMALLEST_TENSOR, _SMALLEST_STRING = 13, 24, 8

_STRING, _ARRAY, _BOOLEAN = 8, 9, 7
# The number types' codes in a file, as struct and numpy spell them.
_NUMBERS: dict[int, str] = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}

# ggml's type codes; those whose name is not in FORMATS are refused by that name.
_TYPE_NAMES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}


class GgufCheckpoint(MappedTensors):
    """An opened GGUF file.

    ``directory`` is the model directory it was found in, when a directory was opened.
    """

    def __init__(
        self,
        path: Path,
        metadata: Metadata,
        tensors: dict[str, Tensor],
        directory: ModelDirectory | None = None,
    ) -> None:
        super().__init__(tensors)
        self.path = path
        self.metadata = metadata
        self.directory = directory


def open_gguf(path: Path, directory: ModelDirectory | None = None) -> GgufCheckpoint:
    """Open a GGUF file, version 2 or 3.

    Raises CorruptFile for anything that is not wholly there and well-formed, and for a tensor whose
    block type is not supported; ModelNotFound where there is no file.
    """
    data = map_file(path)
    header = _Header(path, data)
    tensor_count, key_count = _read_start(header)
    metadata = Metadata(path, _read_keys(header, key_count))
    if metadata.integer("split.count", 1) > 1:
        header.fail("it is one part of a split model; join the parts with llama-gguf-split --merge")
    described = [_read_description(header) for _ in range(tensor_count)]
    tensors = _place(header, described, _alignment(header, metadata))
    return GgufCheckpoint(path, metadata, tensors, directory)


class _Header:
    """A position in the mapped file; every read checks that the file goes on that far."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0
        self.array_values = 0

    def fail(self, what: str) -> NoReturn:
        raise CorruptFile(f"{self.path}: {printable(what)}")

    def take(self, size: int, what: str) -> int:
        """Step over ``size`` bytes; their position."""
        at = self.at
        if size > self.size - at:
            self.fail(f"the file ends inside {what}; fetch it again")
        self.at = at + size
        return at

    def u32(self, what: str) -> int:
        return int.from_bytes(self.data[self.take(4, what) : self.at], "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.data[self.take(8, what) : self.at], "little")

    def count(self, smallest: int, what: str) -> int:
        """A 64-bit count of things that take at least ``smallest`` bytes each."""
        count = self.u64(what)
        if count > (self.size - self.at) // smallest:
            self.fail(f"it announces {count} {what}, more than the file has room for")
        return count

    def array_count(self, smallest: int, what: str) -> int:
        """The count of an array's values, which all arrays together have limits for."""
        count = self.count(smallest, what)
        self.array_values += count
        if self.array_values > _MAX_ARRAY_VALUES:
            self.fail(
                f"with the {count} {what} its arrays hold {self.array_values} values; "
                f"supported are {_MAX_ARRAY_VALUES} in all"
            )
        return count

    def string(self, what: str) -> str:
        length = self.u64(what)
        at = self.take(length, what)
        try:
            return self.data[at : self.at].decode()
        except UnicodeDecodeError:
            self.fail(f"{what} is not valid UTF-8")

    def strings(self, count: int, what: str) -> list[str]:
        """Strings one after the other: `string` unrolled, as a vocabulary has 260,000."""
        data, at, last = self.data, self.at, self.size - _SMALLEST_STRING
        length_at = struct.Struct("<Q").unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                if at > last:
                    self.fail(f"the file ends inside {what}; fetch it again")
                (length,) = length_at(data, at)
                at += _SMALLEST_STRING
                if length > self.size - at:
                    self.fail(f"the file ends inside {what}; fetch it again")
                found.append(data[at : at + length].decode())
                at += length
        except UnicodeDecodeError:
            self.fail(f"string {len(found)} of {what} is not valid UTF-8")
        self.at = at
        return found

    def numbers(self, kind: str, count: int, what: str) -> list[Any]:
        dtype = np.dtype(kind)
        at = self.take(count * dtype.itemsize, what)
        values: list[Any] = np.frombuffer(self.data, dtype, count, at).tolist()
        return values

    def booleans(self, count: int, what: str) -> list[bool]:
        at = self.take(count, what)
        raw = np.frombuffer(self.data, np.uint8, count, at)
        if count and int(raw.max()) > 1:
            self.fail(f"{what} has a boolean that is neither 0 nor 1")
        values: list[bool] = raw.astype(np.bool_).tolist()
        return values


def _read_start(header: _Header) -> tuple[int, int]:
    """The counts of tensors and of keys, after the magic and the version."""
    at = header.take(4, "the magic")
    if header.data[at : at + 4] != MAGIC:
        header.fail("it is not a GGUF file")
    version = header.u32("the version")
    # A version's upper half is empty, so in a big-endian file the lower half is.
    if version and version & 0xFFFF == 0:
        header.fail("it is a big-endian GGUF file, which is not supported; convert it again")
    if version not in _VERSIONS:
        known = " and ".join(map(str, _VERSIONS))
        header.fail(f"its GGUF version is {version}; supported are {known}")
    tensor_count = header.count(_SMALLEST_TENSOR, "tensors")
    return tensor_count, header.count(_SMALLEST_KEY, "metadata keys")


def _read_keys(header: _Header, count: int) -> dict[str, object]:
    values: dict[str, object] = {}
    for index in range(count):
        key = header.string(f"the name of metadata key {index}")
        if key in values:
            header.fail(f"the metadata key {key} is there twice")
        kind = header.u32(f"the type of {key}")
        values[key] = _read_value(header, kind, key)
    return values


def _read_value(header: _Header, kind: int, key: str) -> object:
    if kind == _ARRAY:
        return _read_array(header, key)
    if kind == _STRING:
        return header.string(key)
    return _read_scalars(header, kind, 1, key)[0]


def _read_array(header: _Header, key: str) -> list[Any]:
    kind = header.u32(f"the type of {key}")
    if kind == _ARRAY:
        header.fail(f"the metadata key {key} is an array of arrays, which is not supported")
    if kind == _STRING:
        return header.strings(header.array_count(_SMALLEST_STRING, f"strings in {key}"), key)
    return _read_scalars(header, kind, header.array_count(1, f"values in {key}"), key)


def _read_scalars(header: _Header, kind: int, count: int, key: str) -> list[Any]:
    if kind == _BOOLEAN:
        return header.booleans(count, key)
    if kind not in _NUMBERS:
        header.fail(f"the metadata key {key} has the unknown type {kind}")
    return header.numbers(_NUMBERS[kind], count, key)


def _alignment(header: _Header, metadata: Metadata) -> int:
    alignment = metadata.integer("general.alignment", _DEFAULT_ALIGNMENT)
    if alignment <= 0 or alignment & (alignment - 1):
        header.fail(f"its alignment is {alignment}, which is no power of two")
    return alignment


@frozen
class _Description:
    """A tensor as the header describes it; ``offset`` counts from the data's start."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    offset: int

    @property
    def size(self) -> int:
        """Bytes of data."""
        return math.prod(self.shape) // self.format.block_values * self.format.block_bytes


def _read_description(header: _Header) -> _Description:
    name = header.string("a tensor's name")
    dimensions = header.u32(f"tensor {name}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        header.fail(f"tensor {name} has {dimensions} dimensions; supported are 1 to 4")
    shape = tuple(header.u64(f"tensor {name}") for _ in range(dimensions))[::-1]
    code = header.u32(f"tensor {name}")
    type_name = _TYPE_NAMES.get(code, f"number {code}")
    if type_name not in FORMATS:
        header.fail(
            f"block type {type_name} of tensor {name} is not supported; "
            f"supported are {', '.join(FORMATS)}"
        )
    block_format = FORMATS[type_name]
    if 0 in shape:
        header.fail(f"tensor {name} has a dimension of 0")
    if shape[-1] % block_format.block_values:
        header.fail(
            f"tensor {name} has rows of {shape[-1]} values, which are no whole "
            f"{type_name} blocks of {block_format.block_values}"
        )
    return _Description(name, shape, block_format, header.u64(f"tensor {name}"))


def _place(header: _Header, described: list[_Description], alignment: int) -> dict[str, Tensor]:
    """Give every described tensor its bytes of the mapped file, in the header's order."""
    start = -(-header.at // alignment) * alignment
    _check_places(header, described, start, alignment)
    tensors: dict[str, Tensor] = {}
    for tensor in described:
        if tensor.name in tensors:
            header.fail(f"tensor {tensor.name} is there twice")
        rows = math.prod(tensor.shape[:-1])
        data = np.frombuffer(header.data, np.uint8, tensor.size, start + tensor.offset)
        tensors[tensor.name] = Tensor(
            tensor.name, tensor.shape, tensor.format, data.reshape(rows, -1)
        )
    return tensors


def _check_places(
    header: _Header, described: list[_Description], start: int, alignment: int
) -> None:
    """Refuse tensors that are misaligned, overlap one another or reach past the file's end."""
    free_from, before = 0, ""
    for tensor in sorted(described, key=lambda tensor: tensor.offset):
        if tensor.offset % alignment:
            header.fail(
                f"the data of tensor {tensor.name} starts at {tensor.offset}, "
                f"which is no multiple of {alignment}"
            )
        if tensor.offset < free_from:
            header.fail(f"the data of tensors {before} and {tensor.name} overlap")
        free_from, before = tensor.offset + tensor.size, tensor.name
        if start + free_from > header.size:
            header.fail(
                f"tensor {tensor.name} ends at byte {start + free_from}, but the file has "
                f"{header.size}; fetch it again"
            )
