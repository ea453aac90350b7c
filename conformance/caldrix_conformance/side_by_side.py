"""Reports of several servers as one Markdown table: ``python -m caldrix_conformance.side_by_side``.

Each argument is a title and a report's JSON file, as in ``'caldrix 0.1.0=caldrix.json'``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cyclopts import App

from caldrix_conformance.clauses import Level
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.saved import SavedReport, read_report
from caldrix_conformance.verdicts import Status

app = App(name="python -m caldrix_conformance.side_by_side", help_format="plaintext")


def markdown(reports: Mapping[str, SavedReport]) -> str:
    """The reports by title, at least one: clauses by status, then by area those kept of judged.

    Raises SuiteError if the reports are not of the same clauses.
    """
    _expect_same_clauses(reports)
    head = ["", *map(_escaped, reports)]
    by_status = [
        [label, *(_count(report, status, levels) for report in reports.values())]
        for label, status, levels in _ROWS
    ]
    shown = [cells for cells in by_status if any(cell != "0" for cell in cells[1:])]
    areas = dict.fromkeys(clause.area for one in reports.values() for clause in one.clauses)
    by_area = [[area, *(_kept(one, area) for one in reports.values())] for area in areas]
    return "\n".join(
        (*_table(["clauses", *head[1:]], shown), "", *_table(["kept", *head[1:]], by_area), "")
    )


_ALL = frozenset(Level)
_ROWS = (
    *((status.value, status, _ALL) for status in Status),
    *((f"broken, {level.value}", Status.FAIL, frozenset({level})) for level in Level),
)


def _expect_same_clauses(reports: Mapping[str, SavedReport]) -> None:
    first, *others = reports.items()
    wanted = {clause.id for clause in first[1].clauses}
    for title, report in others:
        differing = sorted(wanted ^ {clause.id for clause in report.clauses})
        if differing:
            raise SuiteError(
                f"the reports of {first[0]} and {title} are not of the same clauses; "
                f"{differing[0]} is in one of them alone: make both anew"
            )


def _count(report: SavedReport, status: Status, levels: Iterable[Level]) -> str:
    return str(sum(one.status is status and one.level in levels for one in report.clauses))


def _kept(report: SavedReport, area: str) -> str:
    statuses = [clause.status for clause in report.clauses if clause.area == area]
    kept = statuses.count(Status.PASSED)
    judged = kept + statuses.count(Status.FAIL)
    return f"{kept} of {judged}" if judged else "–"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = (head, ["---", *["---:"] * (len(head) - 1)], *rows)
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


@app.default
def main(*reports: str) -> int:
    """Print the table.

    Parameters
    ----------
    reports
        A title and a report's JSON file, as in 'caldrix 0.1.0=caldrix.json'.
    """
    named = dict(report.rsplit("=", 1) for report in reports if "=" in report)
    if not reports or len(named) < len(reports):
        print("give reports, each with a title of its own, as TITLE=FILE", file=sys.stderr)
        return 2
    try:
        print(markdown({title: read_report(Path(file)) for title, file in named.items()}), end="")
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(app(sys.argv[1:]))
