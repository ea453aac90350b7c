"""Reading safetensors: a model directory's weights, in one file or in shards with an index.

A file is a 64-bit header length, a JSON header that gives each tensor's type, shape and place, and
the data, which the tensors must cover without a gap or an overlap (the format's own rules). Types
that are no weight's (I64, F8_E4M3, …) are refused by name when such a tensor is decoded, because
checkpoints hold buffers that nobody reads.
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from attrs import frozen

from caldrix.weights.blocks import FORMATS, BlockFormat
from caldrix.weights.directory import CONFIG, ModelDirectory, parse_json_object
from caldrix.weights.errors import CorruptFile, ModelNotFound, printable
from caldrix.weights.mapped import MappedTensors, map_file
from caldrix.weights.tensor import Tensor

SINGLE_FILE = "model.safetensors"
INDEX = "model.safetensors.index.json"

# The format's own bound on a header.
_MAX_HEADER = 100_000_000
_LENGTH_BYTES = 8
_MAX_DIMENSIONS = 8

_OTHER_TYPES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16"), 2),
    **dict.fromkeys(("U32", "I32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}

_TYPES: dict[str, BlockFormat] = {
    **{name: FORMATS[name] for name in ("F32", "F16", "BF16")},
    **{name: BlockFormat(name, 1, size) for name, size in _OTHER_TYPES.items()},
}

# A shard is a plain file of the same directory.
_SHARD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\.safetensors")


class SafetensorsCheckpoint(MappedTensors):
    """An opened model directory."""

    def __init__(self, directory: ModelDirectory, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors)
        self.directory = directory

    @property
    def path(self) -> Path:
        """The directory."""
        return self.directory.path


def open_safetensors(path: Path) -> SafetensorsCheckpoint:
    """Open a directory with a config.json and safetensors weights.

    A model.safetensors is taken before an index, as the format's other readers do. Raises
    CorruptFile for files that are missing, broken or disagree; ModelNotFound for no such directory.
    """
    directory = ModelDirectory(path)
    if not path.is_dir():
        raise ModelNotFound(f"{path} is not a directory")
    if not directory.has(CONFIG):
        raise CorruptFile(f"{path} has no {CONFIG}, which a directory of weights needs")
    if directory.has(SINGLE_FILE):
        return SafetensorsCheckpoint(directory, read_safetensors(path / SINGLE_FILE))
    if directory.has(INDEX):
        return SafetensorsCheckpoint(directory, _read_shards(directory))
    raise CorruptFile(
        f"{path} has neither {SINGLE_FILE} nor {INDEX}; other weight formats must be converted"
    )


def shard_names(directory: ModelDirectory) -> dict[str, str]:
    """The index's map from a tensor's name to its shard's file name.

    Raises CorruptFile when the index is broken or names a file outside the directory.
    """
    where = directory.path / INDEX
    weight_map = directory.read_json(INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CorruptFile(f"{where} has no weight_map that names tensors")
    for tensor, shard in weight_map.items():
        if not isinstance(shard, str) or not _SHARD_NAME.fullmatch(shard):
            raise CorruptFile(
                f"{where} places tensor {printable(tensor)} in {printable(repr(shard))}, "
                "which is no .safetensors file of the directory"
            )
    return weight_map


def _read_shards(directory: ModelDirectory) -> dict[str, Tensor]:
    placed = shard_names(directory)
    shards = {name: _read_shard(directory, name) for name in sorted(set(placed.values()))}
    for shard, tensors in shards.items():
        stray = next((name for name in tensors if placed.get(name) != shard), None)
        if stray is not None:
            raise CorruptFile(
                f"{directory.path / printable(shard)} holds tensor {printable(stray)}, "
                "which the index does not place there"
            )
    found: dict[str, Tensor] = {}
    for name, shard in placed.items():
        if name not in shards[shard]:
            raise CorruptFile(
                f"{directory.path / printable(shard)} lacks tensor {printable(name)}, "
                "which the index places there"
            )
        found[name] = shards[shard][name]
    return found


def _read_shard(directory: ModelDirectory, name: str) -> dict[str, Tensor]:
    if not directory.has(name):
        raise CorruptFile(
            f"{directory.path} lacks the shard {printable(name)} that its index names"
        )
    return read_safetensors(directory.path / name)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """One file's tensors, mapped, in the order of their data.

    Raises CorruptFile when the header is broken or disagrees with the file's size.
    """
    data = map_file(path)
    start, header = _read_header(path, data)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        _fail(path, "its __metadata__ is not an object of strings")
    entries = [_parse_entry(path, name, entry) for name, entry in header.items()]
    entries.sort(key=lambda entry: (entry.begin, entry.end))
    _check_cover(path, entries, len(data) - start)
    return {entry.name: _tensor(entry, data, start) for entry in entries}


@frozen
class _Entry:
    """A tensor as the header describes it; its place counts from the data's start."""

    name: str
    shape: tuple[int, ...]
    format: BlockFormat
    begin: int
    end: int


def _fail(path: Path, what: str) -> NoReturn:
    raise CorruptFile(f"{path}: {printable(what)}")


def _read_header(path: Path, data: mmap.mmap) -> tuple[int, dict[str, Any]]:
    """Where the data starts, and the header."""
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    start = _LENGTH_BYTES + length
    if length > _MAX_HEADER:
        _fail(path, f"its header would take {length} bytes: it is not a safetensors file")
    if start > len(data):
        _fail(path, "the file ends inside its header; fetch it again")
    try:
        text = data[_LENGTH_BYTES:start].decode()
    except UnicodeDecodeError:
        _fail(path, "its header is not valid UTF-8")
    if not text.startswith("{"):
        _fail(path, "its header does not start with {: it is not a safetensors file")
    return start, parse_json_object(text, f"the header of {path}")


def _parse_entry(path: Path, name: str, entry: object) -> _Entry:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        _fail(path, f"tensor {name} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _TYPES:
        _fail(path, f"type {dtype} of tensor {name} is not supported")
    if not _is_sizes(shape):
        _fail(path, f"the shape of tensor {name} is no list of sizes")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _fail(path, f"the data_offsets of tensor {name} are no begin and end")
    if 0 in shape:
        _fail(path, f"tensor {name} has a dimension of 0: its values were not saved")
    begin, end = offsets
    expected = math.prod(shape) * _TYPES[dtype].block_bytes
    if end - begin != expected:
        _fail(path, f"tensor {name} has {end - begin} bytes, but its shape takes {expected}")
    return _Entry(name, tuple(shape), _TYPES[dtype], begin, end)


def _is_sizes(value: object) -> bool:
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return False
    return all(type(size) is int and 0 <= size < 1 << 63 for size in value)


def _check_cover(path: Path, entries: list[_Entry], size: int) -> None:
    """Refuse tensors that do not cover the data's ``size`` bytes exactly, one after the other."""
    covered = 0
    for entry in entries:
        if entry.begin != covered:
            problem = "overlaps the one before" if entry.begin < covered else "leaves a gap before"
            _fail(path, f"the data of tensor {entry.name} {problem}")
        covered = entry.end
    if covered > size:
        _fail(path, f"its tensors take {covered} bytes, but it has {size}; fetch it again")
    if covered < size:
        _fail(path, f"it has {size - covered} bytes that belong to no tensor")


def _tensor(entry: _Entry, data: mmap.mmap, start: int) -> Tensor:
    raw = np.frombuffer(data, np.uint8, entry.end - entry.begin, start + entry.begin)
    rows = math.prod(entry.shape[:-1])
    return Tensor(entry.name, entry.shape, entry.format, raw.reshape(rows, -1))
