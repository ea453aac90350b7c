"""`caldrix spec`: its listing, its coverage of a report, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from caldrix.cli.main import execute
from caldrix_conformance.clauses import load_spec
from caldrix_conformance.resources import spec_directory


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    spec = load_spec(spec_directory("caldrix"))
    assert execute(["spec", "list"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(spec)
    assert execute(["spec", "list", "--area", "models", "--area", "health", "--level", "may"]) == 0
    assert capsys.readouterr().out == (
        "models.printed\tmay\tThe list reads as the document prints it, the owner inferno "
        "included.\n"
    )
    assert execute(["spec", "list", "--area", "health", "--json"]) == 0
    clauses = json.loads(capsys.readouterr().out)
    assert [clause["id"] for clause in clauses] == [c.id for c in spec if c.area == "health"]
    assert {clause["area"] for clause in clauses} == {"health"}
    assert clauses[0]["level"] == "must"


def test_the_list_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    assert execute(["spec", "list", "--area", "server"]) == 0
    out = capsys.readouterr().out
    assert "server.key.none" in out
    assert "(untestable: a target is given by its address)" in out
    assert f" of {len(load_spec(spec_directory('caldrix')))} clauses of caldrix" in out


def report(path: Path, *, leave: str = "") -> Path:
    """A report that all is kept, on paper: but one clause, of which it says that no case ran."""
    clauses = [
        {
            "id": clause.id,
            "level": clause.level.value,
            "status": "pass" if clause.untestable is None else "untestable",
            "promise": clause.promise,
            "source": clause.source.value,
            "cases": [] if clause.id == leave else ["test_x"],
        }
        for clause in load_spec(spec_directory("caldrix"))
    ]
    value = {"contract": "caldrix", "target": "t", "model": "m", "faults": [], "clauses": clauses}
    path.write_text(json.dumps(value))
    return path


def test_coverage_of_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = report(tmp_path / "report.json")
    assert execute(["spec", "coverage", str(path)]) == 0
    assert capsys.readouterr().out.split()[:2] == ["area", "tested"]
    path = report(tmp_path / "report.json", leave="models.shape")
    assert execute(["spec", "coverage", str(path)]) == 1
    assert capsys.readouterr().out.endswith("untested: models.shape\n")
    assert execute(["spec", "coverage", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["counts"]["untested"] == 1


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = report(tmp_path / "report.json")
    for arguments, said in (
        (["list", "--area", "nowhere"], "caldrix has no area 'nowhere'; it has chat, "),
        (["list", "--contract", "none"], "no spec of a contract named 'none'"),
        (["list", "--level", "shall"], "--level"),
        (["coverage", "no-such-file"], "the report no-such-file can't be read"),
        (["coverage", str(path), "--contract", "other"], "of the contract caldrix, not other"),
        (["coverage", "--contract", "none"], "no spec of a contract named 'none'"),
    ):
        assert execute(["spec", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert said in line


def test_diff_outside_a_checkout(tmp_path: Path) -> None:
    entry = "from caldrix.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", entry, "spec", "diff"],
        cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "caldrix: git is needed to compare with a revision, and isn't there\n"
