"""A model with eyes, served and judged as others would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import caldrix_serve
from tests.support.tiny_vision_model import write_vision_model


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("vision") / "smolvlm-tiny")


@pytest.fixture(scope="module")
def url(checkpoint: Path) -> Iterator[str]:
    with caldrix_serve(
        str(checkpoint), "--context", "8192", "--threads", "1", "--log-level", "warning"
    ) as address:
        yield address


def test_every_clause_is_kept_by_a_model_with_eyes(url: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("caldrix")), "conformance", url, "--strict"]
    for area in ("images.*", "image-sizes.*", "image-bodies.*", "template.*"):
        command += ["--only", area]
    command += ["--json", str(tmp_path / "report")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert report["counts"]["fail"] == report["counts"]["error"] == 0
    status = {each["id"]: each["status"] for each in report["clauses"]}
    for name in ("images.answer.sees", "images.count.over", "image-bodies.most"):
        assert status[name] == "pass"
