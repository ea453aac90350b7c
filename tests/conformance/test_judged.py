"""Modules that judge nothing of what is asked: left out once they are known, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from caldrix_conformance import judged, plugin
from caldrix_conformance import run as run_module
from caldrix_conformance.options import Settings
from caldrix_conformance.resources import CASES
from caldrix_conformance.run import judge
from caldrix_conformance.verdicts import Report, Status
from tests.mutants.toy.server import Toy, serving
from tests.support.golden_runs import reports

MODULES = {path.name for path in (CASES / "caldrix").glob("test_*.py")}


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the modules that runs have collected, in a process that knows none yet."""
    names: set[str] = set()

    def noted(path: Path, wanted: Callable[[str], bool]) -> bool:
        left_out = judged.judges_none(path, wanted)
        if path.name in MODULES and not left_out:
            names.add(path.name)
        return left_out

    monkeypatch.setattr(judged, "_JUDGED", {})
    monkeypatch.setattr(plugin, "judges_none", noted)
    return names


def judged_by(url: str, *only: str) -> Report:
    report = judge(Settings(url=url, only=only))
    assert report is not None
    assert report.faults == []
    return report


def outcomes(report: Report) -> dict[str, tuple[Status, tuple[str, ...]]]:
    return {v.clause.id: (v.status, tuple(v.cases)) for v in report.verdicts}


def test_a_later_run_collects_less_and_judges_the_same(collected: set[str]) -> None:
    with serving(Toy()) as url:
        first = judged_by(url, "health.*", "fields.user")
        assert collected == MODULES
        collected.clear()
        second = judged_by(url, "health.*", "fields.user")
        assert collected == {"test_models.py", "test_fields.py"}
        # What was left out is there for who asks for it.
        others = judged_by(url, "template.*")
    assert outcomes(second) == outcomes(first)
    assert {status for status, cases in outcomes(first).values() if cases} == {Status.PASSED}
    assert all(cases for _, cases in outcomes(others).values())


def test_a_case_named_by_its_node_tells_nothing_of_its_module(
    collected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = run_module._arguments

    def one_case(settings: Settings) -> list[str]:
        folder, *options = arguments(settings)
        return [f"{folder}/test_models.py::test_health", *options]

    with serving(Toy()) as url:
        with monkeypatch.context() as patch:
            patch.setattr(run_module, "_arguments", one_case)
            judged_by(url, "health.*")
        assert {v.status for v in judged_by(url, "models.*").verdicts} == {Status.PASSED}
    assert "test_models.py" in collected


@pytest.mark.usefixtures("own_goldens")
def test_goldens_are_written_by_all_modules(
    collected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {CASES / "caldrix" / name: frozenset[str]() for name in MODULES}
    monkeypatch.setattr(judged, "_JUDGED", known)
    with serving(Toy()) as url:
        reports(url, only=["health.*"], write_goldens=True)
    # Each was collected, and so it is known by now what it does judge.
    assert all(known.values())
    assert collected == set()
