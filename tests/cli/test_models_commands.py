"""`caldrix pull` and `caldrix models`, on models that are on this machine."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from caldrix.cli.models import app, list_models, show
from caldrix.cli.progress import TerminalProgress
from caldrix.cli.pull import pull
from caldrix.weights.errors import CacheUnusable, CorruptFile, ModelNotFound


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GGUF file in an Ollama store, as ollama:tiny."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_tensor("norm", np.ones(3, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    blob = tmp_path / "store" / "blobs" / f"sha256-{digest}"
    blob.parent.mkdir(parents=True)
    path.rename(blob)
    layer = {
        "mediaType": "application/vnd.ollama.image.model",
        "digest": f"sha256:{digest}",
        "size": blob.stat().st_size,
    }
    manifest = tmp_path / "store/manifests/registry.ollama.ai/library/tiny/latest"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"layers": [layer]}))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path / "cache"))
    return blob


def test_pull_prints_the_path_alone(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pull("ollama:tiny") == 0
    assert capsys.readouterr() == (f"{model}\n", "checking tiny:latest\n")


def test_pull_refuses_an_unknown_name(model: Path) -> None:
    with pytest.raises(ModelNotFound, match="there is no model 'tiny'"):
        pull("tiny")


def test_progress_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with TerminalProgress() as progress:
        progress.begin("a", 10)
        progress.advance(5)
        progress.begin("a", 10, 5)
        progress.note("[bold] a wait")
        progress.begin("b", None)
        progress.begin("compiling kernels", 12, unit="pieces")
        progress.advance(1)
    assert capsys.readouterr() == (
        "",
        "fetching a\n[bold] a wait\nfetching b\ncompiling kernels\n",
    )


def test_bars_count_bytes_or_pieces(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    with TerminalProgress() as progress:
        progress.begin("a", 2000, 500)
        progress.begin("compiling kernels", 12, unit="pieces")
        progress.advance(5)
    drawn = capsys.readouterr().err
    fetched = [line for line in drawn.splitlines() if "0.5/2.0 kB" in line]
    assert fetched
    compiled = [line for line in drawn.splitlines() if " 5/12 " in line]
    assert compiled
    assert not any("B/s" in line or "bytes" in line for line in compiled)


def test_list(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list_models(as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "ollama:tiny:latest",
            "source": "ollama",
            "size": model.stat().st_size,
            "path": str(model),
        }
    ]
    assert list_models() == 0
    size = model.stat().st_size
    assert capsys.readouterr().out == f"ollama:tiny:latest\tollama\t{size}\t{model}\n"


def test_on_a_terminal(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")
    list_models()
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "source", "size", "path"]
    assert " ".join(lines[0].split()).startswith(
        f"ollama:tiny:latest ollama {model.stat().st_size} bytes /"
    )
    assert len(lines) > 1
    show("ollama:tiny")
    shown = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "size of tensors 12 bytes" in shown


def test_list_of_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    assert list_models() == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "caldrix pull smollm2" in err
    assert list_models(as_json=True) == 0
    assert capsys.readouterr().out == "[]\n"


def test_show(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show("ollama:tiny", as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {
        "name": "tiny:latest",
        "source": "ollama",
        "path": str(model),
        "format": "GGUF",
        "architecture": "llama",
        "parameters": 3,
        "tensors": 1,
        "types": {"F32": 1},
        "context_length": 64,
        "size_of_tensors": 12,
        "tokenizer": None,
        "chat_template": False,
    }
    assert show("ollama:tiny") == 0
    assert capsys.readouterr().out.splitlines() == [
        "name\ttiny:latest",
        "source\tollama",
        f"path\t{model}",
        "format\tGGUF",
        "architecture\tllama",
        "parameters\t3",
        "tensors\t1",
        "types\t1 F32",
        "context length\t64",
        "size of tensors\t12",
        "tokenizer\tnot said",
        "chat template\tno",
    ]


def test_a_cache_that_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").write_text("")
    monkeypatch.setenv("CALDRIX_CACHE", str(tmp_path / "cache"))
    with pytest.raises(CacheUnusable, match="/cache cannot be read: Not a directory; set CALDRIX"):
        list_models()


def test_a_broken_file_in_the_cache(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.write_bytes(bytes(model.stat().st_size))
    with pytest.raises(CorruptFile, match=r"it is not a GGUF file$"):
        show("ollama:tiny")
    monkeypatch.setenv("CALDRIX_CACHE", str(model.parent))
    with pytest.raises(CorruptFile, match="in the cache: `caldrix pull` with the model's name"):
        show("ollama:tiny")


def test_options_on_the_command_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app(["list", "--json"], result_action="return_value") == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "ollama:tiny:latest"
    assert app(["show", "ollama:tiny", "--json"], result_action="return_value") == 0
    assert json.loads(capsys.readouterr().out)["name"] == "tiny:latest"
