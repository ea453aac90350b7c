"""Coverage of a spec by a run's report: what counts as tested, and which reports are refused."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest
from rich.console import Console

from caldrix_conformance.clauses import Clause, Level, Spec
from caldrix_conformance.coverage import Coverage, SpecCoverage
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.reports.data import report_json
from caldrix_conformance.saved import parse_report, read_report
from caldrix_conformance.verdicts import Report, Status, Verdict


def clause(name: str, untestable: str | None = None) -> Clause:
    return Clause(
        id=name, level=Level.MUST, promise=f"It keeps {name}.", where="A", untestable=untestable
    )


# What a run says of each clause: its status, and the cases that ran.
SEEN = {
    "a.kept": (clause("a.kept"), Status.PASSED, ["test_a"]),
    "a.broken": (clause("a.broken"), Status.FAIL, ["test_b"]),
    "a.lacking": (clause("a.lacking"), Status.UNSUPPORTED, ["test_c"]),
    "b.hidden": (clause("b.hidden", "nobody sees it"), Status.UNTESTABLE, []),
    "b.undeclared": (clause("b.undeclared"), Status.ERROR, []),
    "b.never-ran": (clause("b.never-ran"), Status.FAIL, []),
    "b.crashed": (clause("b.crashed"), Status.ERROR, ["test_d"]),
}


def report(*names: str, faults: tuple[str, ...] = ()) -> str:
    verdicts = [
        Verdict(one, status, "", cases)
        for one, status, cases in (SEEN[name] for name in names or SEEN)
    ]
    return report_json(
        Report(
            contract="demo",
            target="http://h",
            model="m",
            capabilities=frozenset(),
            verdicts=verdicts,
            faults=faults,
            began=datetime(2026, 1, 1, tzinfo=UTC),
            seconds=1.0,
        )
    )


def spec(*names: str) -> Spec:
    return Spec("demo", {name: SEEN[name][0] for name in names or SEEN})


def test_what_a_run_has_made_of_each_clause() -> None:
    coverage = SpecCoverage.of(parse_report(report()), spec())
    assert {name: found.value for name, found in coverage.clauses.items()} == {
        "a.kept": "tested",
        "a.broken": "tested",
        "a.lacking": "unsupported",
        "b.hidden": "untestable",
        "b.undeclared": "untested",
        "b.never-ran": "untested",
        "b.crashed": "error",
    }
    assert coverage.areas["a"][Coverage.TESTED] == 2
    assert coverage.counts[Coverage.UNTESTED] == 2
    assert coverage.gaps == ["b.undeclared", "b.never-ran", "b.crashed"]
    assert coverage.exit_status == 1


def test_a_run_without_gaps() -> None:
    names = ("a.kept", "a.broken", "a.lacking", "b.hidden")
    coverage = SpecCoverage.of(parse_report(report(*names)), spec(*names))
    assert (coverage.gaps, coverage.exit_status) == ([], 0)


def test_a_fault_of_the_suite_may_hide_a_gap() -> None:
    text = report("a.kept", faults=("test_x.py can't be collected",))
    assert SpecCoverage.of(parse_report(text), spec("a.kept")).exit_status == 1


def test_as_a_table_and_as_json() -> None:
    coverage = SpecCoverage.of(parse_report(report()), spec())
    output = io.StringIO()
    coverage.show(Console(file=output, width=80))
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert lines == [
        ["area", "tested", "unsupported", "untestable", "untested", "error", "clauses"],
        ["a", "2", "1", "3"],
        ["b", "1", "2", "1", "4"],
        ["all", "2", "1", "1", "2", "1", "7"],
        ["untested:", "b.undeclared"],
        ["untested:", "b.never-ran"],
        ["error:", "b.crashed"],
    ]
    value = json.loads(coverage.to_json())
    assert value["areas"]["b"] == {
        "tested": 0,
        "unsupported": 0,
        "untestable": 1,
        "untested": 2,
        "error": 1,
    }
    assert value["clauses"]["b.crashed"] == "error"


@pytest.mark.parametrize(
    ("of_run", "of_spec", "complaint"),
    [
        (("a.kept",), ("a.kept", "a.broken"), "it lacks a.broken; write it anew"),
        (("a.kept", "a.broken"), ("a.kept",), "it has unknown clauses a.broken; write"),
        ((), ("a.kept",), "a.broken, a.lacking, b.hidden, b.undeclared, b.never-ran, and 1 more"),
    ],
)
def test_a_report_of_another_state(
    of_run: tuple[str, ...], of_spec: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(SuiteError) as caught:
        SpecCoverage.of(parse_report(report(*of_run)), spec(*of_spec))
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "now",
    [
        attrs.evolve(SEEN["a.kept"][0], promise="It keeps more."),
        attrs.evolve(SEEN["a.kept"][0], level=Level.MAY),
        attrs.evolve(SEEN["a.kept"][0], untestable="nobody sees it"),
    ],
)
def test_a_report_of_a_clause_that_changed(now: Clause) -> None:
    with pytest.raises(SuiteError, match=r"it tells otherwise of a\.kept; write it anew"):
        SpecCoverage.of(parse_report(report("a.kept")), Spec("demo", {"a.kept": now}))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"title = 1", "not a report: Expecting value"),
        (b"[]", "not a report: "),
        (b"\xff", "not a report: "),
        (report("a.kept").replace('"pass"', '"perhaps"').encode(), "$.clauses[0].status"),
        (report("a.kept").replace('"a.kept"', "1").encode(), "$.clauses[0].id"),
        (report("a.kept").replace('"target"', '"goal"').encode(), "$.target"),
    ],
)
def test_what_is_no_report(tmp_path: Path, text: bytes, complaint: str) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(text)
    with pytest.raises(SuiteError) as caught:
        read_report(path)
    assert str(path) in str(caught.value)
    assert complaint in str(caught.value)
    with pytest.raises(SuiteError, match="can't be read: No such file"):
        read_report(tmp_path / "none.json")
