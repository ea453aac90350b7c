"""The suite as a whole: a right server keeps every clause, and a wrong one breaks just its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from caldrix_conformance import resources
from caldrix_conformance import target as target_module
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Level
from caldrix_conformance.options import Settings
from caldrix_conformance.run import judge, run
from caldrix_conformance.target import TIMEOUT, Target
from caldrix_conformance.verdicts import Ledger, Report, Status
from tests.mutants.faults import FAULTS
from tests.mutants.faults.answers import SpacedJson
from tests.mutants.faults.refusals import HealthIsJson
from tests.mutants.toy.server import RIGHT, Toy, serving
from tests.support.golden_runs import OF_A_MODEL


def judged(
    url: str,
    *,
    only: Sequence[str] = (),
    without: Sequence[Capability] = (),
    timeout: float = TIMEOUT,
) -> Report:
    report = judge(Settings(url=url, only=only, without=without, timeout=timeout))
    assert report is not None
    return report


@pytest.mark.parametrize("toy", RIGHT, ids=[toy.__name__ for toy in RIGHT])
def test_a_right_server_keeps_every_clause(toy: type[Toy]) -> None:
    with serving(toy()) as url:
        report = judged(url)
    assert report.faults == []
    bad = {v.clause.id: v.seen for v in report.verdicts if v.status in (Status.FAIL, Status.ERROR)}
    assert bad == {}
    assert not report.capabilities & toy.lacks
    unsupported = {v.clause.id for v in report.verdicts if v.status is Status.UNSUPPORTED}
    lacking = {
        v.clause.id
        for v in report.verdicts
        if v.clause.needs & toy.lacks and v.clause.untestable is None
    }
    # A toy is not the model of the captured texts, either, nor of the printed image exchange.
    of_a_model = OF_A_MODEL | {"images.part.printed-count"}
    assert unsupported - of_a_model == lacking - of_a_model
    untestable = {v.clause.id for v in report.verdicts if v.clause.untestable is not None}
    assert {v.clause.id for v in report.verdicts if v.status is Status.UNTESTABLE} == untestable
    assert report.exit_status(strict=True) == 0


def test_the_right_servers_have_every_capability_together() -> None:
    assert not frozenset.intersection(*(toy.lacks for toy in RIGHT))


@pytest.mark.parametrize("toy", FAULTS, ids=[toy.__name__ for toy in FAULTS])
def test_a_wrong_server_breaks_just_its_own_clauses(toy: type[Toy]) -> None:
    broken = FAULTS[toy]
    areas = sorted({clause_id.partition(".")[0] for clause_id in broken})
    with serving(toy()) as url:
        report = judged(url, only=[f"{area}.*" for area in areas], timeout=toy.waited_for)
    assert {v.clause.id for v in report.broken(*Level)} == broken
    assert report.counts()[Status.ERROR] == 0
    musts = any(verdict.clause.level is Level.MUST for verdict in report.broken(*Level))
    assert report.exit_status(strict=False) == (1 if musts else 0)


def test_strict_counts_a_broken_should() -> None:
    with serving(SpacedJson()) as url:
        assert run(Settings(url=url, only=["wire.*"])) == 0
        assert run(Settings(url=url, only=["wire.*"], strict=True)) == 1


def test_a_capability_said_to_lack_is_not_judged() -> None:
    with serving(Toy()) as url:
        without = (Capability.SAMPLING, Capability.CHAT)
        report = judged(url, without=without, only=["sampling.*", "chat.*", "fields.*"])
    seen = {v.clause.id: v.status for v in report.verdicts}
    assert seen["sampling.top-k.one"] is Status.UNSUPPORTED
    assert seen["chat.response.id"] is Status.UNSUPPORTED
    # Judged on the endpoint that is left.
    assert seen["fields.user"] is Status.PASSED
    assert report.exit_status(strict=True) == 0


def test_the_command_line() -> None:
    with serving(Toy()) as url:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "caldrix_conformance", url, "--verbose"),
                *("--without", "no-template", "--without", "tokens", "--only", "fields.*"),
            ],
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0
    told = done.stderr.splitlines()
    cases = int(told[-1].split()[0])
    assert told[-1] == f"{cases} of {cases} cases done"
    assert len(told) == 10
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["fields.user", "must", "pass"] in rows
    assert next(row for row in rows if row[0] == "fields.token-ids.whole")[:6] == [
        "fields.token-ids.whole",
        "must",
        "unsupported",
        "the",
        "target",
        "lacks",
    ]


def test_a_suite_that_breaks_off_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_off(*_: object) -> None:
        raise RuntimeError("the ledger is gone")

    monkeypatch.setattr(Ledger, "note", break_off)
    with serving(Toy()) as url:
        assert run(Settings(url=url, only=["health.*"])) == 1
    out, err = capsys.readouterr()
    assert "the ledger is gone" in err
    assert "pytest failed while running the cases" in out


class DiesOnSeeds(Toy):
    def check(self, path: str, body: dict[str, Any]) -> None:
        if "seed" in body:
            raise ConnectionError("as if the process had ended")
        super().check(path, body)


def test_a_target_that_dies_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "answers", lambda target: False)
    with serving(DiesOnSeeds()) as url:
        report = judged(url, only=["sampling.*", "health.*"])
    assert report.faults == []
    assert re.fullmatch(
        r"nothing answers at http://\S+ any more, since caldrix/test_sampling.py::\S+",
        report.broke_off,
    )
    assert report.exit_status(strict=False) == 1
    counts = report.counts()
    assert (counts[Status.ERROR], counts[Status.FAIL]) == (0, 1)
    assert counts[Status.UNJUDGED] > 10


class HangsOnPrompts(Toy):
    def check(self, path: str, body: dict[str, Any]) -> None:
        time.sleep(0.2)


def test_a_target_that_lets_all_wait_is_told_once() -> None:
    with serving(HangsOnPrompts()) as url:
        settings = Settings(url=url, only=["sampling.*"], timeout=0.1)
        report = judge(settings)
    assert report is not None
    assert report.broke_off.startswith("3 cases waited 0.1 s each in vain")
    counts = report.counts()
    assert counts[Status.FAIL] <= 3
    assert counts[Status.UNJUDGED] > 10


def test_whether_a_target_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "_PATIENCE", 1)
    with serving(Toy()) as url, Target.connect(url) as target:
        assert target.answers()
    assert not target.answers()


def test_the_report_names_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    with serving(HealthIsJson()) as url:
        assert run(Settings(url=url, only=["health.*"], json=path)) == 1
    (healthz, health, _) = json.loads(path.read_text())["clauses"]
    assert (healthz["id"], healthz["status"]) == ("health.healthz", "fail")
    assert healthz["seen"] == '/healthz answers b\'{"status":"ok"}\''
    assert health["cases"] == ["caldrix/test_models.py::test_health[health.health]"]
    printed = capsys.readouterr().out
    assert "health.healthz  must" in printed
    assert "2 fail" in printed


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        assert run(Settings(url=url)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"{url}: no server answers (")
    assert err.endswith("start one, or give the address of one that runs\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize("url", ["ftp://localhost", "http://", "http://[::1"])
def test_no_url(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Settings(url=url)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_no_such_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Settings(url="http://localhost:1", contract="none")) == 2
    assert capsys.readouterr().err == (
        "there is no spec of a contract named 'none' in this installation\n"
    )


@pytest.mark.parametrize(
    ("case", "complaint"),
    [
        (
            "@checks('chat.no-such-clause')\ndef test_it(): pass",
            "'chat.no-such-clause' is no clause",
        ),
        ("def test_it(): pass", "says of no clause that it judges it"),
        ("@checks('chat.response.id')\ndef test_it(golden): pass", "which names that golden"),
        ("@checks('server.client.openai')\ndef test_it(): pass", "said to be untestable"),
    ],
)
def test_a_case_that_declares_wrongly_ends_the_run(
    case: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "test_it.py").write_text(
        f"from caldrix_conformance.marks import checks\n\n\n{case}\n"
    )
    with serving(Toy()) as url:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-c", str(resources.CASES / "pytest.toml")),
                *("--disable-plugin-autoload", "-p", "no:cacheprovider", "-p", "syrupy"),
                *("-p", "caldrix_conformance.plugin", f"--target={url}", str(tmp_path)),
            ],
            capture_output=True,
            text=True,
        )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert complaint in done.stderr


def test_runs_from_an_installation_in_a_hostile_place(tmp_path: Path) -> None:
    """As a wheel lays it out: spec and goldens inside the package, and no checkout around it."""
    package = tmp_path / "site" / "caldrix_conformance"
    shutil.copytree(resources.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    checkout = resources.PACKAGE.parents[1]
    for kind in ("spec", "goldens"):
        shutil.copytree(checkout / kind, package / kind)
    health = package / "spec" / "caldrix" / "health.toml"
    health.write_text(health.read_text().replace("/health answers ok.", "This copy answers ok."))
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (project / "conftest.py").write_text("raise RuntimeError('not yours to load')\n")
    report = project / "report.json"
    with serving(Toy()) as url:
        done = subprocess.run(
            [sys.executable, "-m", "caldrix_conformance", url, "--strict", f"--json={report}"],
            cwd=project,
            env=os.environ
            | {"PYTHONPATH": str(package.parent), "PYTEST_ADDOPTS": "--no-such-option-either"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0
    assert set(re.sub(r"[0-9]+", "N", done.stderr).splitlines()) == {"N of N cases done"}
    told = json.loads(report.read_text())
    assert told["counts"]["pass"] > 190
    assert "This copy answers ok." in {clause["promise"] for clause in told["clauses"]}
