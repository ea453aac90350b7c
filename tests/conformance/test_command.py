"""`caldrix conformance` without a URL: it serves the embedded model, judges it, and ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from caldrix.cli.conformance import ServerNotStarted, address_in, conformance
from caldrix_conformance.options import Options
from tests.support.golden_runs import OF_A_MODEL


def test_on_a_server_of_its_own(smollm2_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.exists()
    path = tmp_path / "report.json"
    only = ("health.*", "models.*", "chat.response.*", *OF_A_MODEL)
    assert conformance(options=Options(strict=True, only=only, json=path)) == 0
    report = json.loads(path.read_text())
    assert report["model"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    statuses = {clause["id"]: clause["status"] for clause in report["clauses"]}
    assert statuses["health.healthz"] == "pass"
    # It is the model of the goldens, and shows it.
    assert {statuses[clause_id] for clause_id in OF_A_MODEL} == {"pass"}


def test_a_server_that_ends_early() -> None:
    with pytest.raises(ServerNotStarted, match="ended before it was ready"):
        address_in(iter(["some log line\n"]))
    told = ["caldrix is ready\n", "  address  http://h:1/v1, http://i:1/v1\n"]
    assert address_in(iter(told)) == "http://h:1/v1"


def test_sigterm_ends_the_server_too(smollm2_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.exists()
    entry = "from caldrix.cli.main import main; main()"
    report = tmp_path / "report.json"
    only = ["--only", "health.*", "--only", "sampling.*"]
    command = [sys.executable, "-c", entry, "conformance", *only, f"--json={report}"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as suite:
        assert suite.stderr is not None
        assert "cases done" in next(line for line in suite.stderr if "cases done" in line)
        children = Path(f"/proc/{suite.pid}/task/{suite.pid}/children")
        (server,) = map(int, children.read_text().split())
        suite.terminate()
        printed, told = suite.communicate(timeout=60)
    assert suite.returncode == 1
    assert told.endswith("caldrix: interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    # What was seen till then isn't lost.
    assert "the run broke off: it was interrupted" in printed
    told_of = json.loads(report.read_text())
    assert told_of["broke_off"] == "it was interrupted"
    assert told_of["counts"]["unjudged"] > 0
