"""Goldens of the toy server, in the place of the project's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from caldrix_conformance.verdicts import Status
from tests.mutants.toy.server import Toy, serving
from tests.support.golden_runs import goldens_in, reports


@pytest.fixture
def own_goldens(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in the place of the project's goldens."""
    with goldens_in(tmp_path) as folder:
        yield folder


@pytest.fixture(scope="session")
def written_goldens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The toy's own goldens, with margins as wide as they come."""
    with goldens_in(tmp_path_factory.mktemp("goldens")) as folder, serving(Toy()) as url:
        assert reports(url, write_goldens=True).counts()[Status.FAIL] == 0
    for path in folder.rglob("*.json"):
        path.write_text(path.read_text().replace('"margin": null', '"margin": 9.0'))
    return folder


@pytest.fixture
def toy_goldens(own_goldens: Path, written_goldens: Path) -> Path:
    """A copy of the toy's own goldens in the place of the project's."""
    shutil.copytree(written_goldens, own_goldens, dirs_exist_ok=True)
    return own_goldens
