"""A decider: a model directory with a decider_config.json, served and judged as others would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.conftest import caldrix_serve
from tests.soak.model import write_model

CONFIG = {"temperature": 1.03, "neutralize_none": False, "isolated_levels": True}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights, and all the labels there can be."""
    path = write_model(tmp_path_factory.mktemp("decider") / "decider-tiny", "qwen3_5", labels=255)
    (path / "decider_config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture(scope="module")
def url(checkpoint: Path) -> Iterator[str]:
    # More than the longest state that the config lets in.
    with caldrix_serve(
        str(checkpoint), "--context", "32768", "--threads", "1", "--log-level", "warning"
    ) as address:
        yield address


def test_every_clause_is_kept_by_a_decider(url: str, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("caldrix")), "conformance", url, "--strict"]
    command += ["--only", "systemone.*", "--only", "decider.*", "--json", str(tmp_path / "report")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "report").read_text())
    assert report["counts"]["fail"] == report["counts"]["error"] == 0
    outcomes = {each["id"]: each["status"] for each in report["clauses"]}
    unsupported = {name for name, outcome in outcomes.items() if outcome == "unsupported"}
    assert not [name for name in unsupported if name.startswith("decider.")]
    assert outcomes["decider.usage.once"] == outcomes["decider.choice.most"] == "pass"


def refused(checkpoint: Path, *flags: str) -> str:
    run = subprocess.run(
        [Path(sys.executable).with_name("caldrix"), "serve", checkpoint, "--port=0", *flags],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert not run.stdout
    return run.stderr


def another(checkpoint: Path, directory: Path, config: str) -> Path:
    """The same model with another config."""
    directory.mkdir()
    for file in checkpoint.iterdir():
        (directory / file.name).symlink_to(file)
    path = directory / "decider_config.json"
    path.unlink()
    path.write_text(config)
    return directory


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({**CONFIG, "Temperature": 1}, "the key 'Temperature' is not known to this release"),
        ({"neutralize_none": False}, "decider_config.json lacks temperature"),
        ({"temperature": 1.03}, "decider_config.json lacks neutralize_none"),
        ({**CONFIG, "schema_first": True}, "schema_first is True, a form that this release"),
        ({**CONFIG, "version": "v" * 2**16}, "decider_config.json is over the limit of 65536 "),
    ],
)
def test_a_config_that_stops_the_load(
    checkpoint: Path, tmp_path: Path, config: dict[str, object], why: str
) -> None:
    told = refused(another(checkpoint, tmp_path / "other", json.dumps(config)))
    assert why in told
    assert told.count("\n") == 1


def test_the_config_is_read_once_and_isolates_no_levels(checkpoint: Path, tmp_path: Path) -> None:
    """Whether levels are asked one at a time shows in whether their order is of matter."""
    text = json.dumps({**CONFIG, "isolated_levels": False})
    copy = another(checkpoint, tmp_path / "decider-tiny", text)
    levels = ["fine", "annoying", "terrible"]
    with caldrix_serve(str(copy), "--context", "512", "--threads", "1") as address:
        (copy / "decider_config.json").write_text(json.dumps(CONFIG))
        there, back = (scored(address, criteria) for criteria in (levels, levels[::-1]))
    assert there != back[::-1]


def scored(address: str, criteria: list[str]) -> list[float]:
    """The probabilities of the levels."""
    question = {"type": "score", "instructions": "How bad?", "criteria": criteria}
    body = {"model": "decider-tiny", "state": "late", "questions": {"q": question}}
    response = httpx2.post(f"{address}/v1/systemone", json=body)
    assert response.status_code == 200, response.text
    return list(response.json()["answers"]["q"]["probabilities"].values())


def test_one_request_at_a_time(checkpoint: Path) -> None:
    question: dict[str, Any] = {"type": "noul", "instructions": "Late?"}
    with caldrix_serve(
        str(checkpoint), "--context", "256", "--threads", "1", "--max-batch", "2"
    ) as address:
        body = {"model": "decider-tiny", "state": "s", "questions": {"q": question}}
        response = httpx2.post(f"{address}/v1/systemone", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["message"] == "/v1/systemone needs --max-batch 1"
