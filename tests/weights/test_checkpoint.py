"""Which format a path holds, a directory's small files, and what is said about a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.directory import ModelDirectory
from caldrix.weights.errors import CorruptFile, ModelNotFound
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.inventory import Summary, summarize
from caldrix.weights.safetensors import SafetensorsCheckpoint


def write_gguf(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_chat_template("{{ messages }}")
    writer.add_tensor("norm", np.ones(3, np.float32))
    quantized = gguf.quants.quantize(np.ones((2, 32), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("out", quantized, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_directory(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text('{"model_type": "qwen3", "max_position_embeddings": 128}')
    save_file({"w": np.ones((2, 4), np.float16)}, path / "model.safetensors")
    return path


def test_a_gguf_file_needs_no_suffix(tmp_path: Path) -> None:
    with open_checkpoint(write_gguf(tmp_path / "sha256-0123")) as checkpoint:
        assert isinstance(checkpoint, GgufCheckpoint)
        assert checkpoint.directory is None


def test_a_directory_of_safetensors(tmp_path: Path) -> None:
    write_directory(tmp_path)
    write_gguf(tmp_path / "other.gguf")
    with open_checkpoint(tmp_path) as checkpoint:
        assert isinstance(checkpoint, SafetensorsCheckpoint)
        assert checkpoint.directory.read_json("config.json")["model_type"] == "qwen3"


def test_a_directory_with_one_gguf_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf")
    (tmp_path / "decider_config.json").write_text("{}")
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.path == path
        assert checkpoint.directory is not None
        assert checkpoint.directory.has("decider_config.json")
    write_gguf(tmp_path / "again.gguf")
    with pytest.raises(CorruptFile, match=r"several GGUF files \(again.gguf, model.gguf\)"):
        open_checkpoint(tmp_path)


def test_nothing_to_open(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        open_checkpoint(tmp_path / "none")
    with pytest.raises(CorruptFile, match="has no weights"):
        open_checkpoint(tmp_path)
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(CorruptFile, match="it is not a GGUF file"):
        open_checkpoint(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"\xff", "is not valid UTF-8"),
        (b"", "it is not JSON: Expecting value"),
        (b"[1]", "its JSON is not an object"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' is there twice in one object"),
        (b'{"a": Infinity}', "Infinity is not JSON"),
        (b'{"a": 1} trailing', "it is not JSON: Extra data"),
        (b"{" + b" " * 200 + b"}", "is over the limit of 100 bytes"),
    ],
)
def test_a_small_file_is_read_strictly(raw: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(CorruptFile, match=message) as caught:
        ModelDirectory(tmp_path).read_json("config.json", limit=100)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_missing_small_file(tmp_path: Path) -> None:
    with pytest.raises(CorruptFile, match=r"chat_template\.jinja is missing"):
        ModelDirectory(tmp_path).read_text("chat_template.jinja")
    (tmp_path / "chat_template.jinja").write_text("{{ é }}", encoding="utf-8")
    assert ModelDirectory(tmp_path).read_text("chat_template.jinja") == "{{ é }}"


def test_what_is_said_of_a_gguf_file(tmp_path: Path) -> None:
    with open_checkpoint(write_gguf(tmp_path / "m.gguf")) as checkpoint:
        assert summarize(checkpoint) == Summary(
            format="GGUF",
            architecture="llama",
            parameters=67,
            tensors=2,
            types={"F32": 1, "Q8_0": 1},
            context_length=64,
            size_of_tensors=12 + 2 * 34,
            tokenizer="gpt2 (smollm)",
            chat_template=True,
        )


def test_what_is_said_of_a_directory(tmp_path: Path) -> None:
    write_directory(tmp_path)
    expected = Summary(
        format="safetensors",
        architecture="qwen3",
        parameters=8,
        tensors=1,
        types={"F16": 1},
        context_length=128,
        size_of_tensors=16,
        tokenizer=None,
        chat_template=False,
    )
    with open_checkpoint(tmp_path) as checkpoint:
        assert summarize(checkpoint) == expected
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE"}}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ x }}"}))
    with open_checkpoint(tmp_path) as checkpoint:
        summary = summarize(checkpoint)
    assert (summary.tokenizer, summary.chat_template) == ("BPE", True)
