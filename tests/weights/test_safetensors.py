"""Reading safetensors: what the `safetensors` package writes, shards, and hostile headers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

from caldrix.weights.errors import CorruptFile, ModelNotFound
from caldrix.weights.safetensors import open_safetensors, read_safetensors


def document(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


def entry(shape: list[Any], begin: Any, end: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def model_directory(path: Path, **tensors: np.ndarray) -> Path:
    (path / "config.json").write_text("{}")
    save_file(tensors, path / "model.safetensors")
    return path


def test_a_file_of_the_reference_writer(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((3, 5, 2)).astype(np.float32)
    raw: dict[str, Any] = {
        "single": values,
        "half": values.astype(np.float16),
        "scalar": np.array(2.5, np.float32),
        "ids": np.arange(4)[None],
    }
    with open_safetensors(model_directory(tmp_path, **raw)) as checkpoint:
        tensors = dict(checkpoint.tensors)
        assert checkpoint.path == tmp_path
    assert not checkpoint.tensors
    assert {name: (t.format.name, t.shape) for name, t in tensors.items()} == {
        "single": ("F32", (3, 5, 2)),
        "half": ("F16", (3, 5, 2)),
        "scalar": ("F32", ()),
        "ids": ("I64", (1, 4)),
    }
    np.testing.assert_array_equal(tensors["single"].to_float32(), values)
    np.testing.assert_array_equal(tensors["half"].to_float32(), raw["half"].astype(np.float32))
    assert tensors["scalar"].to_float32() == 2.5
    assert tensors["single"].data.shape == (15, 8)
    with pytest.raises(CorruptFile, match="type I64 of tensor ids is not supported"):
        tensors["ids"].to_float32()


def test_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(document({"w": entry([2], 0, 4, "BF16")}, b"\x80\x3f\x40\xc0"))
    assert read_safetensors(path)["w"].to_float32().tolist() == [1.0, -3.0]


def test_metadata_of_the_file_is_no_tensor(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"w": np.zeros(1, np.float32)}, path, metadata={"format": "pt"})
    assert list(read_safetensors(path)) == ["w"]


GOOD = {"a": entry([2, 2], 0, 16), "b": entry([1], 16, 20)}

# What is wrong with a file -> the file, and what the error says.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "short": (b"\x01\0\0", "its header does not start with|ends inside its header"),
    "huge header": (b"\xff" * 8 + b"{}", "it is not a safetensors file"),
    "cut header": (document(GOOD)[:-1], "the file ends inside its header"),
    "no JSON": (document(b"{]"), "it is not JSON"),
    "no object": (document(b"[]"), "does not start with {"),
    "not UTF-8": (document(b'{"\xff":1}'), "not valid UTF-8"),
    "deep": (document(b'{"a":' + b"[" * 200_000), "nested too deeply"),
    "digits": (document(b'{"a":' + b"9" * 5000 + b"}"), "more than 4300 digits"),
    "NaN": (document(b'{"a":NaN}'), "NaN is not JSON"),
    "twice": (document(b'{"a":1,"a":1}'), "the key 'a' is there twice"),
    "metadata": (document({"__metadata__": {"a": 1}}), "not an object of strings"),
    "no entry": (document({"a": 5}), "tensor a is not described by"),
    "extra key": (document({"a": {**GOOD["a"], "x": 1}}), "tensor a is not described by"),
    "dtype": (document({"a": entry([1], 0, 1, "F4")}), "type F4 of tensor a is not supported"),
    "dtype's type": (document({"a": entry([1], 0, 1, [])}), "of tensor a is not supported"),
    "shape": (document({"a": entry([-1], 0, 4)}), "shape of tensor a is no list of sizes"),
    "shape's type": (document({"a": entry([True], 0, 4)}), "is no list of sizes"),
    "dimensions": (document({"a": entry([1] * 99, 0, 4)}), "is no list of sizes"),
    "overflow": (document({"a": entry([1 << 62, 1 << 62], 0, 4)}), "its shape takes 8507059"),
    "dimension 0": (document({"a": entry([0], 0, 0)}), "a has a dimension of 0"),
    "offsets": (document({"a": entry([1], 4, 0)}), "data_offsets of tensor a are no"),
    "float offsets": (document({"a": entry([1], 0.0, 4.0)}), "data_offsets of tensor a are no"),
    "size": (document({"a": entry([1], 0, 5)}, b"\0" * 5), "has 5 bytes, but its shape takes 4"),
    "cut data": (document(GOOD, b"\0" * 19), "its tensors take 20 bytes, but it has 19"),
    "more data": (document(GOOD, b"\0" * 21), "it has 1 bytes that belong to no tensor"),
    "overlap": (
        document({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, b"\0" * 8),
        "the data of tensor b overlaps the one before",
    ),
    "gap": (
        document({"a": entry([1], 0, 4), "b": entry([1], 8, 12)}, b"\0" * 12),
        "the data of tensor b leaves a gap before",
    ),
}


@pytest.mark.parametrize(("raw", "message"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused_by_name(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CorruptFile, match=message) as caught:
        read_safetensors(path)
    assert str(path) in str(caught.value)


SMALL = save({"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float16)})


@given(
    st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.binary(min_size=1, max_size=3))),
    st.one_of(st.none(), st.integers(0, len(SMALL))),
)
@settings(max_examples=300, deadline=None)
def test_a_mutated_file_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, bytes]], cut: int | None
) -> None:
    raw = bytearray(SMALL)
    for at, patch in changes:
        raw[at : at + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "mutated.safetensors"
    path.write_bytes(raw[:cut])
    with contextlib.suppress(CorruptFile):
        for tensor in read_safetensors(path).values():
            assert tensor.data.nbytes > 0


def sharded(path: Path, weight_map: object) -> Path:
    (path / "config.json").write_text("{}")
    save_file({"a": np.full(2, 1, np.float32)}, path / "model-00001-of-00002.safetensors")
    save_file({"b": np.full(3, 2, np.float32)}, path / "model-00002-of-00002.safetensors")
    index = {"metadata": {"total_size": 20}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_shards(tmp_path: Path) -> None:
    with open_safetensors(sharded(tmp_path, {"b": SECOND, "a": FIRST})) as checkpoint:
        values = {name: t.to_float32().tolist() for name, t in checkpoint.tensors.items()}
    assert values == {"a": [1, 1], "b": [2, 2, 2]}


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({}, "has no weight_map"),
        (None, "has no weight_map"),
        ({"a": 5}, "places tensor a in 5, which is no .safetensors file of the directory"),
        ({"a": "../secret.safetensors"}, "which is no .safetensors file of the directory"),
        ({"a": "/etc/x.safetensors"}, "which is no .safetensors file of the directory"),
        ({"a": "sub/x.safetensors"}, "which is no .safetensors file of the directory"),
        ({"a": "model.bin"}, "which is no .safetensors file of the directory"),
        ({"a": FIRST, "b": SECOND, "c": SECOND}, f"{SECOND} lacks tensor c"),
        ({"a": FIRST, "b": FIRST}, f"{FIRST} lacks tensor b"),
        ({"a": FIRST, "b": "model-9.safetensors"}, "lacks the shard model-9.safetensors"),
        ({"a": FIRST, "c": SECOND}, f"{SECOND} holds tensor b, which the index does not place"),
    ],
)
def test_an_index_that_disagrees_is_refused(
    weight_map: object, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorruptFile, match=message):
        open_safetensors(sharded(tmp_path, weight_map))


def test_a_directory_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="is not a directory"):
        open_safetensors(tmp_path / "none")
    with pytest.raises(CorruptFile, match=r"has no config\.json"):
        open_safetensors(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CorruptFile, match=r"neither model\.safetensors nor"):
        open_safetensors(tmp_path)


def test_a_linked_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    model_directory(tmp_path / "blobs", w=np.ones(1, np.float32))
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for name in ("config.json", "model.safetensors"):
        (snapshot / name).symlink_to(tmp_path / "blobs" / name)
    assert open_safetensors(snapshot).tensors["w"].to_float32() == [1.0]
