"""Models by Ollama tag: its local store, and a registry on the loopback address."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from caldrix.weights.errors import CorruptFile, DownloadFailed, ModelNotFound
from caldrix.weights.inventory import list_cached
from caldrix.weights.names import find, pull, resolve
from caldrix.weights.ollama import OllamaSource
from tests.support.loopback import LoopbackServer, Recorder

CONTENT = b"GGUF" + bytes(1000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()
MODEL = "application/vnd.ollama.image.model"


def layer(
    kind: str = MODEL, digest: object = f"sha256:{DIGEST}", size: object = len(CONTENT)
) -> Any:
    return {"mediaType": kind, "digest": digest, "size": size}


def manifest(*layers: Any) -> str:
    template = {"mediaType": "application/vnd.ollama.image.template", "digest": "x", "size": 1}
    return json.dumps({"schemaVersion": 2, "layers": [template, *layers]})


@pytest.fixture
def store(cache: Path, tmp_path: Path) -> Path:
    """Ollama's own store, with one model."""
    root = tmp_path / "ollama-store"
    put(root, "library/tiny/latest", manifest(layer()))
    (root / "blobs").mkdir()
    (root / "blobs" / f"sha256-{DIGEST}").write_bytes(CONTENT)
    return root


def put(store: Path, name: str, text: str) -> None:
    path = store / "manifests" / "registry.ollama.ai" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def registry(
    server: LoopbackServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> LoopbackServer:
    monkeypatch.setenv("CALDRIX_OLLAMA_REGISTRY", server.url)
    server.answers["/v2/library/tiny/manifests/0.1b"] = manifest(layer()).encode()
    server.answers[f"/v2/library/tiny/blobs/sha256:{DIGEST}"] = CONTENT
    return server


@pytest.mark.parametrize(
    ("name", "parsed", "served"),
    [
        ("ollama:tiny", ("library", "tiny", "latest"), "tiny:latest"),
        ("ollama:qwen3:0.6b", ("library", "qwen3", "0.6b"), "qwen3:0.6b"),
        ("ollama:me/tiny:x_1", ("me", "tiny", "x_1"), "me/tiny:x_1"),
    ],
)
def test_names(name: str, parsed: tuple[str, str, str], served: str) -> None:
    source = OllamaSource.parse(name)
    assert (source.space, source.model, source.tag) == parsed
    assert source.served_name == served


@pytest.mark.parametrize("name", ["", ":x", "a:b:c", "../x", "a/../b", "a/b/c", "a b", "a:../b"])
def test_no_names(name: str) -> None:
    with pytest.raises(ModelNotFound, match="is not an Ollama name"):
        OllamaSource.parse(f"ollama:{name}")


def test_ollamas_own_store_comes_first(store: Path, registry: LoopbackServer) -> None:
    resolved = resolve("ollama:tiny")
    assert resolved.path == store / "blobs" / f"sha256-{DIGEST}"
    assert (resolved.served_name, resolved.source) == ("tiny:latest", "ollama")
    assert not registry.requests
    assert [(m.name, m.size, m.path) for m in list_cached()] == [
        ("ollama:tiny:latest", len(CONTENT), resolved.path)
    ]


def test_a_pulled_model_needs_no_request_again(
    registry: LoopbackServer, cache: Path, progress: Recorder
) -> None:
    registry.cuts[f"/v2/library/tiny/blobs/sha256:{DIGEST}"] = [100]
    path = resolve("ollama:tiny:0.1b", progress).path
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(cache)
    registry.requests.clear()
    assert find("ollama:tiny:0.1b").path == path
    assert resolve("ollama:tiny:0.1b").path == path
    assert not registry.requests
    assert [model.name for model in list_cached()] == ["ollama:tiny:0.1b"]


def test_an_update_asks_the_registry(registry: LoopbackServer) -> None:
    resolve("ollama:tiny:0.1b")
    registry.requests.clear()
    resolve("ollama:tiny:0.1b", update=True)
    assert registry.paths() == ["/v2/library/tiny/manifests/0.1b"]


def test_a_broken_pull_leaves_no_model(registry: LoopbackServer) -> None:
    registry.answers[f"/v2/library/tiny/blobs/sha256:{DIGEST}"] = b"x" * len(CONTENT)
    with pytest.raises(DownloadFailed, match="does not have the announced sha256"):
        resolve("ollama:tiny:0.1b")
    with pytest.raises(ModelNotFound, match=r"`caldrix pull ollama:tiny:0\.1b`"):
        find("ollama:tiny:0.1b")
    assert list_cached() == []


def test_a_pull_mends_the_cache(registry: LoopbackServer, progress: Recorder) -> None:
    path = pull("ollama:tiny:0.1b", progress).path
    registry.requests.clear()
    assert pull("ollama:tiny:0.1b").path == path
    assert not registry.requests
    path.write_bytes(CONTENT[:-1] + b"x")
    assert resolve("ollama:tiny:0.1b").path == path
    assert pull("ollama:tiny:0.1b", progress).path == path
    assert path.read_bytes() == CONTENT
    assert f"{path} was damaged: its sha256 was not {DIGEST}; fetching it again" in progress.notes
    path.unlink()
    with pytest.raises(CorruptFile, match=r"`caldrix pull ollama:tiny:0\.1b` fetches it again"):
        resolve("ollama:tiny:0.1b")
    assert pull("ollama:tiny:0.1b").path.read_bytes() == CONTENT
    manifest_path = path.parents[1] / "manifests/registry.ollama.ai/library/tiny/0.1b"
    manifest_path.write_text("{")
    assert pull("ollama:tiny:0.1b", progress).path == path
    assert "it is not JSON" in progress.notes[-1]


def test_ollamas_own_store_is_left_as_it_is(store: Path) -> None:
    path = pull("ollama:tiny").path
    path.write_bytes(bytes(len(CONTENT)))
    with pytest.raises(CorruptFile, match=r"damaged.*remove it, then `ollama pull tiny:latest`"):
        pull("ollama:tiny")
    assert path.read_bytes() == bytes(len(CONTENT))


def test_what_the_registry_lacks(registry: LoopbackServer) -> None:
    with pytest.raises(ModelNotFound, match="the Ollama registry has no model none:latest"):
        resolve("ollama:none")
    registry.answers["/v2/library/odd/manifests/latest"] = lambda: (500, {}, b"")
    with pytest.raises(DownloadFailed, match="status 500"):
        resolve("ollama:odd")


def test_no_registry(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALDRIX_OLLAMA_REGISTRY", "http://127.0.0.1:9")
    with pytest.raises(DownloadFailed, match=r"could not be fetched.*`caldrix models list` names"):
        resolve("ollama:tiny")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "it is not JSON"),
        ("{}", "has no list of layers"),
        (manifest(), "has 0 model layers"),
        (manifest(layer(), layer()), "has 2 model layers"),
        (manifest(5, layer(size="7")), "has no sha256 digest and size"),
        (manifest(layer(digest="sha256:../../x")), "has no sha256 digest and size"),
        (manifest(layer(), layer("application/vnd.ollama.image.adapter")), "has an adapter"),
        (manifest(layer("application/vnd.ollama.image.tensor")), "has separate tensor files"),
        (manifest(layer(size=7)), "is not there with 7 bytes; `ollama pull odd:latest` fetches"),
    ],
)
def test_a_manifest_that_cannot_be_used(text: str, message: str, store: Path) -> None:
    put(store, "library/odd/latest", text)
    with pytest.raises(CorruptFile, match=message):
        resolve("ollama:odd")
    assert [model.name for model in list_cached()] == ["ollama:tiny:latest"]
