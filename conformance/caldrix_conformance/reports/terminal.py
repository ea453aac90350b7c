"""A run's report for people, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from caldrix_conformance.clauses import Level
from caldrix_conformance.verdicts import Report, Status, Verdict

_STYLES = {
    Status.PASSED: "green",
    Status.FAIL: "bold red",
    Status.UNSUPPORTED: "yellow",
    Status.ERROR: "bold magenta",
    Status.UNTESTABLE: "dim",
    Status.UNJUDGED: "cyan",
}
_EXPLAINED = frozenset({Status.FAIL, Status.ERROR, Status.UNSUPPORTED, Status.UNJUDGED})


def print_report(report: Report, console: Console, *, every_clause: bool = False) -> None:
    """Print the clauses that are not kept (all of them with ``every_clause``) and the counts."""
    shown = [
        verdict
        for verdict in report.verdicts
        if every_clause or verdict.status in (Status.FAIL, Status.ERROR)
    ]
    if shown:
        console.print(_table(shown))
    for fault in report.faults:
        console.print(Text(f"the suite failed: {fault}", style=_STYLES[Status.ERROR]))
    if report.broke_off:
        left = report.counts()[Status.UNJUDGED]
        words = f"the run broke off: {report.broke_off}; clauses not judged: {left}"
        console.print(Text(words, style=_STYLES[Status.FAIL]))
    console.print(_areas(report))
    console.print(_summary(report))


def _table(verdicts: list[Verdict]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("clause", no_wrap=True)
    table.add_column("level")
    table.add_column("status")
    table.add_column("what was seen", overflow="fold", ratio=1)
    for verdict in verdicts:
        seen = verdict.seen if verdict.status in _EXPLAINED else ""
        table.add_row(
            verdict.clause.id,
            verdict.clause.level.value,
            Text(verdict.status.value, style=_STYLES[verdict.status]),
            Text(seen),
        )
    return table


def _areas(report: Report) -> Table:
    """How many clauses of each area have each status, leaving out statuses that none has."""
    shown = [status for status, count in report.counts().items() if count]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("area", no_wrap=True)
    for status in shown:
        table.add_column(status.value, justify="right", style=_STYLES[status])
    for area, group in groupby(report.verdicts, key=lambda verdict: verdict.clause.area):
        statuses = [verdict.status for verdict in group]
        counts = (statuses.count(status) for status in shown)
        table.add_row(area, *(str(count) if count else "" for count in counts))
    return table


def _summary(report: Report) -> Text:
    counts = report.counts()
    text = Text(f"{len(report.verdicts)} clauses of {report.contract}, {report.model} at ")
    text.append(report.target)
    for status, count in counts.items():
        if count:
            text.append(", ")
            text.append(f"{count} {status.value}", style=_STYLES[status])
    text.append("".join(_broken_levels(report)))
    return text


def _broken_levels(report: Report) -> Iterator[str]:
    for level in Level:
        broken = len(report.broken(level))
        if broken:
            yield f"\n{broken} of level {level.value} broken"
