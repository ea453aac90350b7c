"""Models by their Ollama tag: from Ollama's own store, or pulled from its registry.

A store holds manifests by name and blobs by SHA-256. What is pulled goes into a store of the same
layout in the cache, so that one reader serves both.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
from attrs import frozen

from caldrix.weights.cache import (
    cache_errors,
    cache_root,
    discard_damaged,
    is_whole,
    locked,
    sha256_of,
    write_text,
)
from caldrix.weights.directory import parse_json_object
from caldrix.weights.download import Remote, download, new_client
from caldrix.weights.errors import (
    WITHOUT_NETWORK,
    CorruptFile,
    DownloadFailed,
    ModelNotFound,
    printable,
)
from caldrix.weights.progress import Progress

PREFIX = "ollama:"

_HOST = "registry.ollama.ai"
_LIBRARY = "library"
_MODEL = "application/vnd.ollama.image.model"
# Layers that change what the model computes, which is more than its GGUF file says.
_REFUSED = {
    "application/vnd.ollama.image.adapter": "an adapter",
    "application/vnd.ollama.image.tensor": "separate tensor files instead of one GGUF file",
}
_MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
_MAX_MANIFEST_BYTES = 4 << 20

_WORD = r"[A-Za-z0-9][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"(?:(?P<space>{_WORD})/)?(?P<model>{_WORD})(?::(?P<tag>{_WORD}))?")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@frozen
class Blob:
    """A manifest's model layer. ``sha256`` is in hexadecimal."""

    sha256: str
    size: int


@frozen
class OllamaSource:
    """A model by its tag: ``space/model:tag``, where a model of the library has no space."""

    space: str
    model: str
    tag: str
    kind: str = "ollama"

    @classmethod
    def parse(cls, name: str) -> OllamaSource:
        """From ``ollama:[space/]model[:tag]``; the tag is ``latest`` if none is given."""
        match = _NAME.fullmatch(name.removeprefix(PREFIX))
        if match is None:
            raise ModelNotFound(
                f"{printable(name)} is not an Ollama name; they look like {PREFIX}qwen3:0.6b"
            )
        return cls(match["space"] or _LIBRARY, match["model"], match["tag"] or "latest")

    @property
    def served_name(self) -> str:
        """``model:tag``, after its space unless that is the library."""
        name = f"{self.model}:{self.tag}"
        return name if self.space == _LIBRARY else f"{self.space}/{name}"

    def cached(self) -> Path | None:
        """The GGUF file in Ollama's store or in the cache; None if neither has the tag.

        Raises CorruptFile for a manifest that is broken or needs what is not supported.
        """
        found = (self._find(store) for store in stores())
        return next((path for path in found if path is not None), None)

    def discard_damaged(self, progress: Progress) -> None:
        """Remove the file, if it is in the cache and does not have its manifest's SHA-256.

        Raises CacheUnusable, and CorruptFile for a damaged file in Ollama's store, which is not
        ours to change.
        """
        theirs, ours = stores()
        if (path := self._find(theirs)) is not None:
            progress.note(f"checking {self.served_name}")
            self._check(path)
        elif (manifest := self._manifest_path(ours)).is_file():
            progress.note(f"checking {self.served_name}")
            self._discard_from(ours, manifest, progress)

    def _check(self, path: Path) -> None:
        try:
            if _blob_name(sha256_of(path)) == path.name:
                return
        except OSError as error:
            raise CorruptFile(f"{path} cannot be read: {error.strerror}") from error
        raise CorruptFile(
            f"{path} is damaged: its sha256 is not the one in its name; remove it, then "
            f"`ollama pull {self.served_name}` fetches it again"
        )

    def _discard_from(self, store: Path, manifest: Path, progress: Progress) -> None:
        try:
            blob = _read_manifest(manifest)
        except CorruptFile as error:
            progress.note(f"{error}; fetching it again")
        else:
            path = _blob_path(store, blob)
            with locked(path, progress):
                discard_damaged(path, blob.sha256, progress)
            if is_whole(path, blob.size):
                return
        # Without its file it would be an error for good; without both the model is not here.
        with cache_errors(manifest):
            manifest.unlink()

    def fetch(self, progress: Progress) -> Path:
        """Ask the registry for the tag and fetch its file unless the cache has it.

        Raises ModelNotFound, DownloadFailed, CacheUnusable, CorruptFile.
        """
        registry = os.environ.get("CALDRIX_OLLAMA_REGISTRY", f"https://{_HOST}").rstrip("/")
        repository = f"{registry}/v2/{self.space}/{self.model}"
        store = _own_store()
        with new_client() as client:
            manifest = self._fetch_manifest(client, f"{repository}/manifests/{self.tag}")
            blob = parse_manifest(manifest, f"the manifest of {self.served_name}")
            path = _blob_path(store, blob)
            url = f"{repository}/blobs/sha256:{blob.sha256}"
            download(client, Remote(url, blob.size, blob.sha256), path, progress)
        # The manifest comes last: with it, everything is there.
        write_text(self._manifest_path(store), manifest)
        return path

    def _manifest_path(self, store: Path) -> Path:
        return store / "manifests" / _HOST / self.space / self.model / self.tag

    def _find(self, store: Path) -> Path | None:
        manifest = self._manifest_path(store)
        if not manifest.is_file():
            return None
        blob = _read_manifest(manifest)
        path = _blob_path(store, blob)
        if not is_whole(path, blob.size):
            ours = store == _own_store()
            again = f"caldrix pull {PREFIX}" if ours else "ollama pull "
            raise CorruptFile(
                f"{path}, which {manifest} names, is not there with {blob.size} bytes; "
                f"`{again}{self.served_name}` fetches it again"
            )
        return path

    def _fetch_manifest(self, client: httpx2.Client, url: str) -> str:
        try:
            response = client.get(url, headers={"Accept": _MANIFEST_TYPE})
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise DownloadFailed(
                f"{url} could not be fetched: {error}; {WITHOUT_NETWORK}"
            ) from error
        if response.status_code == httpx2.codes.NOT_FOUND:
            raise ModelNotFound(f"the Ollama registry has no model {self.served_name}")
        if response.status_code != httpx2.codes.OK:
            raise DownloadFailed(f"{url} could not be fetched: status {response.status_code}")
        if len(response.content) > _MAX_MANIFEST_BYTES:
            raise DownloadFailed(f"{url} is no manifest: it has {len(response.content)} bytes")
        return response.text


def stores() -> tuple[Path, Path]:
    """Ollama's own store, and ours in the cache."""
    chosen = os.environ.get("OLLAMA_MODELS")
    own = Path(chosen).expanduser() if chosen else Path.home() / ".ollama" / "models"
    return own, _own_store()


def stored() -> Iterator[tuple[OllamaSource, Path]]:
    """Every model that the stores hold and that can be read, with its GGUF file."""
    for store in stores():
        for manifest in sorted((store / "manifests" / _HOST).glob("*/*/*")):
            space, model, tag = manifest.parts[-3:]
            if not _NAME.fullmatch(f"{space}/{model}:{tag}"):
                continue
            source = OllamaSource(space, model, tag)
            # Ollama runs some models that are refused here; naming one says why.
            with contextlib.suppress(CorruptFile):
                if (path := source.cached()) is not None:
                    yield source, path


def parse_manifest(text: str, where: str) -> Blob:
    """The one GGUF layer of a manifest; ``where`` names it in CorruptFile's sentence."""
    layers = parse_json_object(text, where).get("layers")
    if not isinstance(layers, list):
        raise CorruptFile(f"{where} has no list of layers")
    kinds = [layer.get("mediaType") if isinstance(layer, dict) else None for layer in layers]
    for kind, what in _REFUSED.items():
        if kind in kinds:
            raise CorruptFile(f"{where} has {what}, which is not supported")
    if kinds.count(_MODEL) != 1:
        raise CorruptFile(f"{where} has {kinds.count(_MODEL)} model layers; one is supported")
    return _parse_layer(layers[kinds.index(_MODEL)], where)


def _parse_layer(layer: dict[str, Any], where: str) -> Blob:
    size = layer.get("size")
    digest = _DIGEST.fullmatch(str(layer.get("digest")))
    if digest is None or type(size) is not int or size <= 0:
        raise CorruptFile(f"{where}: its model layer has no sha256 digest and size")
    return Blob(digest[1], size)


def _own_store() -> Path:
    return cache_root() / "ollama"


def _blob_path(store: Path, blob: Blob) -> Path:
    return store / "blobs" / _blob_name(blob.sha256)


def _blob_name(sha256: str) -> str:
    return f"sha256-{sha256}"


def _read_manifest(manifest: Path) -> Blob:
    try:
        text = manifest.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{manifest} cannot be read: {printable(str(error))}") from error
    return parse_manifest(text, str(manifest))
