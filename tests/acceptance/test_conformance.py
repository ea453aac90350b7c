"""The conformance suite against our own server on real weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_every_clause_is_kept(tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("caldrix"))
    run = subprocess.run(
        [command, "conformance", "--strict", "--json", str(tmp_path / "report")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    counts = json.loads((tmp_path / "report").read_text())["counts"]
    assert counts["pass"] > 420
    assert counts["fail"] == counts["error"] == 0
