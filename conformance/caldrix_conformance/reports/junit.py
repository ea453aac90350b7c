"""A run's report as JUnit XML, which CI systems show: a suite an area, a test case a clause."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree as ET

from caldrix_conformance.verdicts import Report, Status, Verdict

# A clause that the target lacks, or that nobody can judge, is a skipped test. So is one that the
# run did not come to: that it broke off is one error, in a suite of its own.
_ELEMENTS = {
    Status.FAIL: "failure",
    Status.ERROR: "error",
    Status.UNSUPPORTED: "skipped",
    Status.UNTESTABLE: "skipped",
    Status.UNJUDGED: "skipped",
}


def junit_xml(report: Report) -> str:
    """The report; what went wrong with the run itself are errors in a suite of their own."""
    root = ET.Element("testsuites", _counts(report.verdicts))
    root.set("name", f"{report.contract} contract")
    root.set("time", f"{report.seconds:.1f}")
    for area, verdicts in groupby(report.verdicts, key=lambda verdict: verdict.clause.area):
        of_area = list(verdicts)
        suite = ET.SubElement(root, "testsuite", _counts(of_area))
        suite.set("name", area)
        suite.set("timestamp", report.began.isoformat(timespec="seconds"))
        for verdict in of_area:
            _add_case(suite, report.contract, verdict)
    faults = [*report.faults, *([report.broke_off] if report.broke_off else ())]
    if faults:
        count = str(len(faults))
        suite = ET.SubElement(root, "testsuite", name="the suite itself", tests=count, errors=count)
        for fault in faults:
            case = ET.SubElement(suite, "testcase", classname="suite", name="fault")
            ET.SubElement(case, "error", message=fault)
    ET.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, "unicode")}\n'


def _counts(verdicts: Sequence[Verdict]) -> dict[str, str]:
    elements = [_ELEMENTS.get(verdict.status) for verdict in verdicts]
    return {
        "tests": str(len(elements)),
        "failures": str(elements.count("failure")),
        "errors": str(elements.count("error")),
        "skipped": str(elements.count("skipped")),
    }


def _add_case(suite: ET.Element, contract: str, verdict: Verdict) -> None:
    clause = verdict.clause
    classname = f"{contract}.{clause.area}.{clause.level.value}"
    case = ET.SubElement(suite, "testcase", classname=classname, name=clause.id)
    element = _ELEMENTS.get(verdict.status)
    if element is None:
        return
    told = ET.SubElement(case, element, message=verdict.seen)
    lines = [clause.promise, *(f"{one.case}: {one.seen}" for one in verdict.failures)]
    told.text = "\n".join(lines)
