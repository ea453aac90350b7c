"""Fixtures for tests of checkpoints and downloads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caldrix.weights import download
from tests.support.loopback import LoopbackServer, Recorder, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackServer]:
    """A web server, which a download that fails asks again without a pause."""
    monkeypatch.setattr(download, "_FIRST_PAUSE_S", 0.0)
    with serving() as state:
        yield state


@pytest.fixture
def progress() -> Recorder:
    return Recorder()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, an empty Ollama store, and no way out to a real server."""
    root = tmp_path / "cache"
    monkeypatch.setenv("CALDRIX_CACHE", str(root))
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "ollama-store"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return root
