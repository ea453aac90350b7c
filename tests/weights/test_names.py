"""What a model's name resolves to."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from caldrix.weights import names
from caldrix.weights.cache import cache_root
from caldrix.weights.errors import ModelNotFound
from caldrix.weights.hub import HubSource
from caldrix.weights.names import Resolved, find, resolve, source_of


@pytest.mark.parametrize(
    ("alias", "served"),
    [
        ("smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        ("gemma3-270m", "google/gemma-3-270m"),
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B"),
        ("llama-8b", "meta-llama/Llama-3.1-8B-Instruct"),
        ("smolvlm-256m", "HuggingFaceTB/SmolVLM-256M-Instruct"),
        ("decider-0.8b", "Mapika/decider-0.8b"),
    ],
)
def test_aliases(alias: str, served: str) -> None:
    assert source_of(alias).served_name == served


def test_a_file_and_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "my.model-q4.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(str(file)) == Resolved(file, "my.model-q4", "path")
    directory = tmp_path / "owner" / "my.model"
    directory.mkdir(parents=True)
    assert resolve(str(directory)) == Resolved(directory, "my.model", "path")
    monkeypatch.chdir(tmp_path)
    # A directory that is there is meant, though its name could be a hub's.
    assert resolve("owner/my.model").source == "path"
    monkeypatch.chdir(directory)
    assert resolve(".").served_name == "my.model"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/owner/my.model").path == directory


def test_an_alias_is_meant_before_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert source_of("smollm2").kind == "wheel"
    assert source_of("./smollm2").kind == "path"


def test_a_gguf_file_without_the_suffix(tmp_path: Path) -> None:
    (tmp_path / "sha256-0123").write_bytes(b"GGUF")
    assert resolve(str(tmp_path / "sha256-0123")).served_name == "sha256-0123"


@pytest.mark.parametrize(
    ("name", "repo", "revision"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B", "main"),
        ("a/b@refs/pr/1", "a/b", "refs/pr/1"),
        ("a/b@0123abc", "a/b", "0123abc"),
    ],
)
def test_hub_names(name: str, repo: str, revision: str) -> None:
    source = source_of(name)
    assert source == HubSource(repo, revision)
    assert source.served_name == repo


@pytest.mark.parametrize(
    "name", ["x" * 5000, "a/" * 4000 + "a", "a/" + "b" * 300, "ollama:" + "b" * 300, "a\0b"]
)
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no model '") as caught:
        source_of(name)
    assert len(str(caught.value)) < 700


def test_a_home_that_is_not_known() -> None:
    with pytest.raises(ModelNotFound, match="directory of ~no-such-user is not known"):
        source_of("~no-such-user/x")


def test_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests may run as root, who may read everything.
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ModelNotFound, match="is a directory that may not be read"):
        source_of(str(tmp_path))

    def stat(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(ModelNotFound, match=r"model\.gguf cannot be reached: Permission denied"):
        source_of("/locked/model.gguf")


@pytest.mark.parametrize("name", ["", "a/b/c", "a/b@", "a/b@../c", "what is this", "http://x/y"])
def test_what_is_no_name_is_told_what_is(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        source_of(name)
    for possible in (*names.ALIASES, "directory", ".gguf", "owner/name[@revision]", "ollama:"):
        assert possible in str(caught.value)


def test_a_near_miss_is_named() -> None:
    with pytest.raises(ModelNotFound, match=r"did you mean smollm2\?"):
        source_of("SmolLM-2")


@pytest.mark.parametrize("name", ["./none", "/none/x", "none.gguf", "~/none-such"])
def test_a_path_to_nothing(name: str) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        source_of(name)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"PK\3\4")
    with pytest.raises(ModelNotFound, match=r"pytorch_model\.bin is not a GGUF file"):
        source_of(str(path))


def test_what_is_not_here_is_not_fetched_by_find(cache: Path) -> None:
    with pytest.raises(ModelNotFound, match="fetch it with `caldrix pull smollm2`"):
        find("smollm2")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CALDRIX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_root() == tmp_path / ".cache" / "caldrix"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_root() == tmp_path / ".cache" / "caldrix"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/xdg")
    assert cache_root() == Path("/var/xdg/caldrix")
    monkeypatch.setenv("CALDRIX_CACHE", "~/models")
    assert cache_root() == tmp_path / "models"
