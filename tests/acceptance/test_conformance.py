"""The conformance suite against our own server on real weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from attrs import frozen

from tests.acceptance.conftest import caldrix_serve
from tests.support.opencl import require_device

COMMAND = str(Path(sys.executable).with_name("caldrix"))

SERVED = ("smollm2", "--backend", "host", "--log-level", "warning")

TOUCHED_BY_BATCHES = (
    "chat.*", "completions.*", "sampling.*", "streaming.*", "server.*", "systemone.batched.*",
)  # fmt: skip
"""What a batch, and where a token is picked, can change; the rest is judged on one row."""


@frozen
class Judged:
    """How a run of the suite ended."""

    counts: dict[str, int]
    passed: frozenset[str]
    """Ids of clauses."""

    def passed_of(self, area: str) -> int:
        """Clauses of an area that are kept."""
        return sum(name.startswith(f"{area}.") for name in self.passed)


def judge(report: Path, *arguments: str) -> Judged:
    """A run of the suite, which has to end well."""
    run = subprocess.run(
        [COMMAND, "conformance", *arguments, "--strict", "--json", str(report)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    told = json.loads(report.read_text())
    assert told["counts"]["fail"] == told["counts"]["error"] == 0
    passed = frozenset(each["id"] for each in told["clauses"] if each["status"] == "pass")
    return Judged(told["counts"], passed)


def test_every_clause_is_kept(tmp_path: Path) -> None:
    assert judge(tmp_path / "report").counts["pass"] > 580


def test_every_clause_is_kept_by_opencl_kernels(tmp_path: Path) -> None:
    """Of one request at a time, so that decisions are judged as well.

    What takes servers with other settings is judged on the cpu lane alone.
    """
    require_device()
    with caldrix_serve(*SERVED, "--max-batch", "1") as address:
        judged = judge(tmp_path / "report", address)
    assert judged.counts["pass"] > 570
    assert judged.passed_of("systemone") > 150
    assert not judged.passed_of("systemone.batched")


def test_every_clause_is_kept_by_opencl_kernels_in_batches(tmp_path: Path) -> None:
    """As the lane is started by default."""
    require_device()
    only = [flag for area in TOUCHED_BY_BATCHES for flag in ("--only", area)]
    with caldrix_serve(*SERVED, "--max-batch", "8") as address:
        judged = judge(tmp_path / "report", address, *only)
    least = {"chat": 75, "completions": 90, "sampling": 30, "streaming": 35, "server": 12}
    for area, count in least.items():
        assert judged.passed_of(area) >= count, area
    assert judged.passed_of("systemone.batched") == 5
