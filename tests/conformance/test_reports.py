"""Reports in every form: what they say, and that nothing a target sends can break them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import attrs
import httpx2
import pytest
from rich.console import Console

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Clause, Level
from caldrix_conformance.options import Settings
from caldrix_conformance.reports.badge import badge_json
from caldrix_conformance.reports.data import report_json
from caldrix_conformance.reports.junit import junit_xml
from caldrix_conformance.reports.page import page_html
from caldrix_conformance.reports.terminal import print_report
from caldrix_conformance.run import judge, run
from caldrix_conformance.traffic import MOST_KEPT, Exchange, RecordingTransport, Traffic
from caldrix_conformance.verdicts import Observation, Report, Status, Verdict
from tests.mutants.faults.streams import NeverDone
from tests.mutants.toy.server import Toy, serving

NASTY = "<script>alert(1)</script> & \\x1b[31m"


def verdict(clause_id: str, status: Status, level: Level = Level.MUST, seen: str = "") -> Verdict:
    clause = Clause(id=clause_id, level=level, promise=f"{clause_id} is kept.", where="Here")
    failures = []
    if status is Status.FAIL:
        exchange = Exchange("POST /v1/completions")
        exchange.sent.add(b"POST /v1/completions\n\n{}")
        exchange.received.add(b"500\n\n<script>alert(2)</script>\xff")
        failures = [Observation(clause_id, "test_x.py::test_it", status, seen, [exchange])]
    return Verdict(clause, status, seen, ["test_x.py::test_it"], failures)


def report(*verdicts: Verdict, faults: tuple[str, ...] = ()) -> Report:
    return Report(
        contract="caldrix",
        target="http://localhost:1",
        model="m",
        capabilities=frozenset({Capability.CHAT}),
        verdicts=verdicts,
        faults=faults,
        began=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        seconds=12.34,
    )


MIXED = report(
    verdict("chat.a", Status.PASSED),
    verdict("chat.b", Status.FAIL, seen=NASTY),
    verdict("chat.c", Status.UNSUPPORTED, seen="the target lacks vision"),
    verdict("errors.a", Status.FAIL, Level.SHOULD, seen="no"),
    verdict("errors.b", Status.UNTESTABLE, seen="nobody can see it"),
    verdict("errors.c", Status.ERROR, seen="KeyError: 'x'"),
    faults=("test_y.py can't be collected",),
)


def test_junit() -> None:
    root = ET.fromstring(junit_xml(MIXED))
    assert root.attrib == {
        **{"name": "caldrix contract", "tests": "6", "failures": "2", "errors": "1"},
        **{"skipped": "2", "time": "12.3"},
    }
    suites = {suite.attrib["name"]: suite for suite in root}
    assert list(suites) == ["chat", "errors", "the suite itself"]
    kept, broken, lacking = suites["chat"]
    assert (kept.attrib["name"], kept.attrib["classname"]) == ("chat.a", "caldrix.chat.must")
    assert list(kept) == []
    (failure,) = broken
    assert (failure.tag, failure.attrib["message"]) == ("failure", NASTY)
    assert failure.text == f"chat.b is kept.\ntest_x.py::test_it: {NASTY}"
    assert [child.tag for child in lacking] == ["skipped"]
    (fault,) = suites["the suite itself"]
    assert fault[0].attrib["message"] == "test_y.py can't be collected"


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page() -> None:
    page = _Page()
    page.feed(page_html(MIXED))
    assert "script" not in page.tags
    assert all(address.startswith("#") for address in page.addresses)
    assert NASTY in page.text
    assert "<script>alert(2)</script>\\xff" in page.text
    assert "the suite failed: test_y.py can't be collected" in page.text.lower().replace("\n", " ")
    for row in MIXED.verdicts:
        assert row.clause.promise in page.text


def test_an_exchange_of_several_cases_is_shown_once() -> None:
    shared = Exchange("GET /shared")
    shared.received.add(b"what all of them saw")
    rows = [verdict(f"chat.{name}", Status.FAIL) for name in "ab"]
    rows = [
        Verdict(row.clause, row.status, "", [], [Observation("", "", row.status, "", [shared])])
        for row in rows
    ]
    page = page_html(report(*rows))
    assert page.count("what all of them saw") == 1
    assert page.count('href="#exchange-1"') == 1


def test_json() -> None:
    told = json.loads(report_json(MIXED))
    assert told["began"] == "2026-01-02T03:04:05+00:00"
    assert (told["seconds"], told["capabilities"]) == (12.3, ["chat"])
    assert told["counts"] == {
        **{"pass": 1, "fail": 2, "unsupported": 1, "error": 1, "untestable": 1, "unjudged": 0},
    }
    assert told["clauses"][1]["failures"] == [{"case": "test_x.py::test_it", "seen": NASTY}]


@pytest.mark.parametrize(
    ("statuses", "message", "color"),
    [
        ([Status.PASSED, Status.PASSED, Status.UNSUPPORTED], "2 of 2 musts", "brightgreen"),
        ([Status.PASSED, Status.FAIL], "1 of 2 musts", "red"),
        ([Status.PASSED, Status.ERROR], "1 of 2 musts", "red"),
        ([Status.UNSUPPORTED], "nothing judged", "lightgrey"),
    ],
)
def test_badge(statuses: list[Status], message: str, color: str) -> None:
    rows = [verdict(f"chat.{i}", status) for i, status in enumerate(statuses)]
    # A should is no must.
    rows.append(verdict("chat.s", Status.FAIL, Level.SHOULD))
    told = json.loads(badge_json(report(*rows)))
    assert told == {
        "schemaVersion": 1,
        "label": "caldrix contract",
        "message": message,
        "color": color,
    }


def test_a_suite_that_failed_has_no_green_badge() -> None:
    rows = report(verdict("chat.a", Status.PASSED), faults=("a case can't be collected",))
    assert json.loads(badge_json(rows))["color"] == "red"


def test_terminal() -> None:
    out = StringIO()
    print_report(MIXED, Console(file=out, width=100))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    assert [line.split()[0] for line in lines[1:4]] == ["chat.b", "errors.a", "errors.c"]
    areas = lines.index("area    pass  fail  unsupported  error  untestable")
    assert [line.split() for line in lines[areas + 1 : areas + 3]] == [
        ["chat", "1", "1", "1"],
        ["errors", "1", "1", "1"],
    ]
    assert "1 of level must broken" in lines
    assert "1 of level should broken" in lines


# The traffic behind a failure.


def test_a_failure_tells_what_went_over_the_wire() -> None:
    with serving(NeverDone()) as url:
        told = judge(Settings(url=url, only=["streaming.done", "errors.size.*"]))
    assert told is not None
    (broken,) = told.broken(*Level)
    (failure,) = broken.failures
    (exchange,) = failure.traffic
    assert exchange.title == "POST /v1/chat/completions"
    assert '"stream":true' in exchange.sent.text
    assert exchange.received.text.startswith("200\n")
    assert '"finish_reason":"length"' in exchange.received.text


class RawlyWrong(Toy):
    def get(self, path: str) -> dict[str, object] | str:
        return "\x1b[31mno list\r" if path == "/v1/models" else super().get(path)


def test_what_a_target_sends_cannot_break_a_report() -> None:
    with serving(RawlyWrong()) as url:
        told = judge(Settings(url=url, model="m", only=["models.*", "wire.*"]))
    assert told is not None
    assert told.broken(*Level)
    for row in told.verdicts:
        assert row.seen.isprintable()
    connections = [
        exchange
        for row in told.broken(*Level)
        for failure in row.failures
        for exchange in failure.traffic
    ]
    assert any(r"\x1b[31mno list" in exchange.received.text for exchange in connections)
    ET.fromstring(junit_xml(told))
    assert "\x1b" not in report_json(told)
    assert "\x1b" not in page_html(told)


def test_traffic_is_kept_up_to_a_bound() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        request.read()
        return httpx2.Response(200, content=iter([b"y" * (MOST_KEPT + 5)]))

    traffic = Traffic()
    transport = RecordingTransport(httpx2.MockTransport(answer), traffic, 60)
    with traffic.of("a case"), httpx2.Client(transport=transport) as client:
        pieces = iter([b"x" * MOST_KEPT, b"x" * 1000])
        assert len(client.post("http://localhost/", content=pieces).content) == MOST_KEPT + 5
    (exchange,) = traffic.told_by("a case")
    for side in (exchange.sent, exchange.received):
        assert len(side.kept) == MOST_KEPT
        assert re.search(r"\n… [\d,]+ more bytes$", side.text)
    assert exchange.sent.total > MOST_KEPT + 1000


def test_a_connection_that_breaks_is_told() -> None:
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("nobody there")

    traffic = Traffic()
    transport = RecordingTransport(httpx2.MockTransport(refuse), traffic, 60)
    with (
        traffic.of("a case"),
        httpx2.Client(transport=transport) as client,
        pytest.raises(httpx2.ConnectError),
    ):
        client.get("http://localhost/")
    assert traffic.told_by("a case")[0].broke == "nobody there"


@pytest.mark.parametrize("option", ["json", "junit", "html", "badge"])
def test_a_file_that_cannot_be_written_is_told_before_the_run(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none" / "report"
    asked: dict[str, Any] = {option: path}
    assert run(Settings(url="http://localhost:1", **asked)) == 2
    assert capsys.readouterr().err == (
        f"the report can't be written to {path}: it has no folder to be in\n"
    )


def test_every_form_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths: dict[str, Any] = {name: tmp_path / name for name in ("json", "junit", "html", "badge")}
    with serving(Toy()) as url:
        assert run(Settings(url=url, only=["health.*"], **paths)) == 0
    assert "health.healthz" in paths["html"].read_text()
    assert ET.parse(paths["junit"]).getroot().attrib["failures"] == "0"
    assert json.loads(paths["json"].read_text())["counts"]["pass"] == 2
    assert json.loads(paths["badge"].read_text())["message"] == "2 of 2 musts"
    assert "2 pass" in capsys.readouterr().out


def test_a_run_that_broke_off_is_told_everywhere() -> None:
    told = attrs.evolve(
        report(verdict("chat.a", Status.PASSED), verdict("chat.b", Status.UNJUDGED)),
        broke_off="nothing answers any more, since test_x.py::test_it",
    )
    words = f"{told.broke_off}; clauses not judged: 1"
    printed = StringIO()
    print_report(told, Console(file=printed, width=200))
    assert f"the run broke off: {words}\n" in printed.getvalue()
    assert f"The run broke off:</span> {words}." in page_html(told)
    assert json.loads(report_json(told))["broke_off"] == told.broke_off
    assert json.loads(badge_json(told))["color"] == "red"
    suite = ET.fromstring(junit_xml(told)).findall("testsuite")[-1]
    assert [error.attrib["message"] for error in suite.iter("error")] == [told.broke_off]
    assert told.exit_status(strict=False) == 1
