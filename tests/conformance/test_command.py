"""`caldrix conformance` without a URL: it serves the embedded model, judges it, and ends it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from caldrix.cli.conformance import ServerNotStarted, _address, conformance
from caldrix_conformance.options import Options


def test_on_a_server_of_its_own(smollm2_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.exists()
    path = tmp_path / "report.json"
    only = ("health.*", "models.*", "chat.response.*")
    assert conformance(options=Options(strict=True, only=only, json=path)) == 0
    report = json.loads(path.read_text())
    assert report["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    statuses = {clause["id"]: clause["status"] for clause in report["clauses"]}
    assert statuses["chat.response.text"] == "pass"
    assert statuses["health.healthz"] == "pass"


def test_a_server_that_ends_early() -> None:
    with pytest.raises(ServerNotStarted, match="ended before it was ready"):
        _address(iter(["some log line\n"]))
    assert _address(iter(["caldrix is ready\n", "  address  http://h:1/v1, http://i:1/v1\n"])) == (
        "http://h:1/v1"
    )
