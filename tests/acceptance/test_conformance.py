"""The conformance suite against our own server on real weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.acceptance.conftest import caldrix_serve
from tests.support.opencl import require_device

COMMAND = str(Path(sys.executable).with_name("caldrix"))


def counts_of(report: Path, *arguments: str) -> dict[str, int]:
    """How many clauses a run of the suite counted as what; the run has to end well."""
    run = subprocess.run(
        [COMMAND, "conformance", *arguments, "--json", str(report)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    counts: dict[str, int] = json.loads(report.read_text())["counts"]
    return counts


def test_every_clause_is_kept(tmp_path: Path) -> None:
    counts = counts_of(tmp_path / "report", "--strict")
    assert counts["pass"] > 420
    assert counts["fail"] == counts["error"] == 0


def test_every_clause_is_kept_by_opencl_kernels(tmp_path: Path) -> None:
    """What takes servers with other settings is judged on the cpu lane alone."""
    require_device()
    with caldrix_serve("smollm2", "--backend", "host") as address:
        counts = counts_of(tmp_path / "report", address)
    assert counts["pass"] > 420
    assert counts["fail"] == counts["error"] == 0
