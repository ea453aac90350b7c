"""Reading GGUF: real files as the `gguf` package writes and reads them, and hostile ones."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import caldrix.weights.gguf
from caldrix.weights.errors import CorruptFile, ModelNotFound
from caldrix.weights.gguf import GgufCheckpoint, open_gguf

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + values


def tensor(name: str, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    count = len(dimensions)
    return string(name) + struct.pack(f"<I{count}QIQ", count, *dimensions, kind, offset)


def document(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    start = magic + struct.pack("<IQQ", version, len(tensors), len(keys))
    header = start + b"".join(keys) + b"".join(tensors)
    return header + b"\0" * (-len(header) % alignment) + data


SMALL = document(
    [
        key("general.architecture", STRING, string("llama")),
        key("llama.context_length", U32, struct.pack("<I", 64)),
        key("rope.base", F32, struct.pack("<f", 0.5)),
        key("flag", BOOL, b"\1"),
        key("tokens", ARRAY, array(STRING, 3, string("a") + string("") + string("é"))),
        key("scores", ARRAY, array(F32, 2, struct.pack("<2f", 1, -1))),
        key("flags", ARRAY, array(BOOL, 2, b"\0\1")),
    ],
    [tensor("a", [4, 2]), tensor("b", [3], offset=32), tensor("c", [32, 1], 8, 64)],
    bytes(range(1, 35)) * 3,
)


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], GgufCheckpoint]:
    def write_and_open(raw: bytes) -> GgufCheckpoint:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return open_gguf(path)

    return write_and_open


def test_a_file_of_the_reference_writer(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 64)).astype(np.float32)
    kinds = [gguf.GGMLQuantizationType[name] for name in ("F16", "BF16", "Q4_1", "Q8_0", "F32")]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(2**31)
    writer.add_rope_freq_base(1e6)
    writer.add_add_bos_token(False)
    writer.add_token_list(["<s>", "é", ""])
    writer.add_token_scores([0.0, -1.5, 3.25])
    writer.add_token_types([3, 1, 6])
    writer.add_int64("big", -(2**62))
    writer.add_float64("fine", 0.1)
    for kind in kinds:
        writer.add_tensor(kind.name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
    writer.add_tensor("cube", np.arange(24, dtype=np.float32).reshape(2, 3, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with open_gguf(path) as checkpoint:
        assert checkpoint.path == path
        assert dict(checkpoint.metadata) == {
            name: field.contents()
            for name, field in gguf.GGUFReader(path).fields.items()
            if not name.startswith("GGUF.")
        }
        assert checkpoint.metadata["tokenizer.ggml.tokens"] == ["<s>", "é", ""]
        assert list(checkpoint.tensors) == [*(kind.name for kind in kinds), "cube"]
        assert checkpoint.tensors["Q4_1"].shape == (6, 64)
        assert checkpoint.tensors["Q4_1"].data.shape == (6, 2 * 20)
        for kind in kinds:
            expected = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind)
            values = checkpoint.tensors[kind.name].to_float32()
            np.testing.assert_array_equal(values, expected.reshape(6, 64))
        cube = checkpoint.tensors["cube"]
        np.testing.assert_array_equal(cube.to_float32(), np.arange(24).reshape(2, 3, 4))
        assert not cube.data.flags.writeable
    assert not checkpoint.tensors
    # An array keeps its file mapped for as long as it is held.
    assert cube.to_float32()[1, 2, 3] == 23


def test_version_2_and_another_alignment(opened: Callable[[bytes], GgufCheckpoint]) -> None:
    data = struct.pack("<2f", 1, 2) + b"\0" * 56 + struct.pack("<f", 3)
    keys = [key("general.alignment", U32, struct.pack("<I", 64))]
    tensors = [tensor("a", [2]), tensor("b", [1], offset=64)]
    checkpoint = opened(document(keys, tensors, data, version=2, alignment=64))
    assert checkpoint.tensors["a"].to_float32().tolist() == [1, 2]
    assert checkpoint.tensors["b"].to_float32().tolist() == [3]


def test_every_value_type(opened: Callable[[bytes], GgufCheckpoint]) -> None:
    numbers = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", U64: "Q", I64: "q"}
    keys = [key(code, kind, struct.pack(f"<{code}", 7)) for kind, code in numbers.items()]
    keys += [key("d", F64, struct.pack("<d", 0.1)), key("n", ARRAY, array(I8, 0, b""))]
    metadata = opened(document(keys)).metadata
    assert dict(metadata) == {**dict.fromkeys(numbers.values(), 7), "d": 0.1, "n": []}
    assert all(type(metadata[code]) is int for code in numbers.values())


def test_a_large_vocabulary_is_whole(opened: Callable[[bytes], GgufCheckpoint]) -> None:
    tokens = [f"token{number}" for number in range(262_144)]
    raw = b"".join(map(string, tokens))
    checkpoint = opened(document([key("t", ARRAY, array(STRING, len(tokens), raw))]))
    assert checkpoint.metadata["t"] == tokens


def test_all_arrays_count_together(
    opened: Callable[[bytes], GgufCheckpoint], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caldrix.weights.gguf, "_MAX_ARRAY_VALUES", 7)
    assert opened(SMALL).metadata["tokens"] == ["a", "", "é"]
    monkeypatch.setattr(caldrix.weights.gguf, "_MAX_ARRAY_VALUES", 6)
    with pytest.raises(CorruptFile, match="with the 2 values in flags its arrays hold 7 values"):
        opened(SMALL)


HUGE = 1 << 62

# What is wrong with a file -> the file, and what the error says.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short": (b"GG", "the file ends inside the magic"),
    "magic": (document(magic=b"GGML"), "it is not a GGUF file"),
    "version 1": (document(version=1), "its GGUF version is 1; supported are 2 and 3"),
    "version 0": (document(version=0), "its GGUF version is 0"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "tensor count": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), f"announces {HUGE} tensors"),
    "key count": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), f"announces {HUGE} metadata keys"),
    "key length": (document([struct.pack("<Q", HUGE) + b"\0" * 5]), "ends inside the name of"),
    "key bytes": (document([key(b"\xff", U8, b"\0")]), "key 0 is not valid UTF-8"),
    "key twice": (document([key("k", U8, b"\0")] * 2), "the metadata key k is there twice"),
    "key type": (document([key("k", 13, b"\0")]), "key k has the unknown type 13"),
    "string": (document([key("k", STRING, struct.pack("<Q", HUGE))]), "file ends inside k"),
    "not UTF-8": (document([key("k", STRING, string(b"\xc3"))]), "k is not valid UTF-8"),
    "boolean": (document([key("k", BOOL, b"\2")]), "k has a boolean that is neither 0 nor 1"),
    "nested": (document([key("k", ARRAY, array(ARRAY, 0, b""))]), "is an array of arrays"),
    "array type": (document([key("k", ARRAY, array(99, 1, b"\0"))]), "unknown type 99"),
    "strings count": (document([key("k", ARRAY, array(STRING, HUGE, b""))]), "strings in k, more"),
    "numbers count": (document([key("k", ARRAY, array(F64, HUGE, b""))]), "values in k, more"),
    "numbers size": (document([key("k", ARRAY, array(F64, 20, b"\0" * 60))]), "ends inside k"),
    "many values": (
        document([key("k", ARRAY, array(U8, (1 << 24) + 1, bytes((1 << 24) + 1)))]),
        "with the 16777217 values in k its arrays hold 16777217 values; supported are 16777216",
    ),
    "string in array": (
        document([key("k", ARRAY, array(STRING, 1, struct.pack("<Q", HUGE)))]),
        "the file ends inside k",
    ),
    "bytes in array": (
        document([key("k", ARRAY, array(STRING, 2, string("") + string(b"\xff")))]),
        "string 1 of k is not valid UTF-8",
    ),
    "alignment 0": (document([key("general.alignment", U32, b"\0" * 4)]), "alignment is 0"),
    "alignment 24": (document([key("general.alignment", U8, b"\x18")]), "is 24, which is no power"),
    "alignment type": (document([key("general.alignment", F32, b"\0" * 4)]), "not an integer"),
    "split": (document([key("split.count", U16, b"\2\0")]), "one part of a split model"),
    "unsupported": (
        document([], [tensor("blk.0.x", [256], 17)], b"\0" * 99),
        "block type IQ2_XS of tensor blk.0.x is not supported",
    ),
    "unknown type": (
        document([], [tensor("x", [256], 777)], b"\0" * 99),
        "block type number 777 of tensor x is not supported",
    ),
    "no dimension": (document([], [tensor("x", [])], b"\0" * 40), "x has 0 dimensions"),
    "dimensions": (document([], [tensor("x", [1] * 5)], b"\0" * 4), "x has 5 dimensions"),
    "many dimensions": (
        document([], [string("x") + struct.pack("<I", 1 << 31)], b"\0" * 99),
        "x has 2147483648 dimensions",
    ),
    "dimension 0": (document([], [tensor("x", [4, 0])], b"\0" * 4), "x has a dimension of 0"),
    "overflow": (
        document([], [tensor("x", [1 << 32, 1 << 32])], b"\0" * 64),
        "tensor x ends at byte 73786976294838206",
    ),
    "no whole block": (
        document([], [tensor("x", [48], 8)], b"\0" * 99),
        "rows of 48 values, which are no whole Q8_0 blocks of 32",
    ),
    "past the end": (
        document([], [tensor("x", [9])], b"\0" * 35),
        "x ends at byte 100, but the file has 99",
    ),
    "far offset": (document([], [tensor("x", [1], offset=HUGE)], b"\0" * 9), "x ends at byte"),
    "misaligned": (
        document([], [tensor("x", [1], offset=4)], b"\0" * 9),
        "tensor x starts at 4, which is no multiple of 32",
    ),
    "overlap": (
        document([], [tensor("x", [9]), tensor("y", [1], offset=32)], b"\0" * 99),
        "the data of tensors x and y overlap",
    ),
    "tensor twice": (
        document([], [tensor("x", [1]), tensor("x", [1], offset=32)], b"\0" * 99),
        "tensor x is there twice",
    ),
    "control characters": (
        document([], [tensor("\x1b[2J" + "x" * 999, [1], 17)], b"\0" * 99),
        "of tensor \N{REPLACEMENT CHARACTER}\\[2Jx",
    ),
}


@pytest.mark.parametrize(("raw", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_by_name(
    raw: bytes, message: str, opened: Callable[[bytes], GgufCheckpoint]
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptFile, match=message) as caught:
            opened(raw)
        _, most_memory = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most_memory < 1 << 20
    assert "model.gguf" in str(caught.value)
    assert str(caught.value).isprintable()


def test_the_small_file_is_sound(opened: Callable[[bytes], GgufCheckpoint]) -> None:
    checkpoint = opened(SMALL)
    assert len(checkpoint.metadata) == 7
    assert {name: t.shape for name, t in checkpoint.tensors.items()} == {
        "a": (2, 4),
        "b": (3,),
        "c": (1, 32),
    }


@pytest.mark.parametrize("size", range(0, len(SMALL), 3))
def test_a_truncated_file_is_refused(size: int, opened: Callable[[bytes], GgufCheckpoint]) -> None:
    needed = len(SMALL) - 4  # the data of the last tensor ends four bytes before the file does
    if size < needed:
        with pytest.raises(CorruptFile):
            opened(SMALL[:size])
    else:
        opened(SMALL[:size])


patches = st.lists(
    st.tuples(
        st.integers(0, len(SMALL) - 1),
        st.sampled_from([b"\xff", b"\0", b"\1", b"\x09", b"\xff" * 8, b"\0" * 8, b"\0\0\0\x80"]),
    ),
    min_size=1,
    max_size=4,
)


@given(patches, st.one_of(st.none(), st.integers(0, len(SMALL))))
@settings(max_examples=400, deadline=None)
def test_a_mutated_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    raw = bytearray(SMALL)
    for at, patch in changes:
        raw[at : at + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(raw[:cut])
    with contextlib.suppress(CorruptFile):
        for read in open_gguf(path).tensors.values():
            assert read.to_float32().shape == read.shape


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_gguf(tmp_path / "none.gguf")
    with pytest.raises(CorruptFile, match="not a regular file"):
        open_gguf(tmp_path)


def test_metadata_getters(opened: Callable[[bytes], GgufCheckpoint]) -> None:
    metadata = opened(SMALL).metadata
    assert metadata.string("general.architecture") == "llama"
    assert metadata.integer("llama.context_length") == 64
    assert metadata.integer("none", None) is None
    with pytest.raises(CorruptFile, match=r"model\.gguf lacks the metadata key none"):
        metadata.string("none")
    getters: list[tuple[Callable[[str], object], str]] = [
        (metadata.string, "flag"),
        (metadata.integer, "flag"),
        (metadata.integer, "rope.base"),
    ]
    for getter, name in getters:
        with pytest.raises(CorruptFile, match=f"the metadata key {name} is not a"):
            getter(name)
