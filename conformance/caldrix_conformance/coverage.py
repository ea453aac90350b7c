"""Which clauses a run of the suite has really tested, by the report that it wrote.

A clause counts as tested when a case has judged it, kept or broken. One of which the report says
that no case ran, though nothing kept it from running, is untested: a suite must not have any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum

from attrs import frozen
from rich.console import Console
from rich.table import Table
from rich.text import Text

from caldrix_conformance.clauses import Clause, Spec
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.saved import JudgedClause, SavedReport
from caldrix_conformance.verdicts import Status

_NAMED = 5
"""So many clauses are named where a report is refused."""


class Coverage(Enum):
    """What a run has made of a clause."""

    TESTED = "tested"
    UNSUPPORTED = "unsupported"
    """The target lacks what the clause needs."""
    UNTESTABLE = "untestable"
    """No client can observe it; the spec says why."""
    UNTESTED = "untested"
    """No case has judged it."""
    ERROR = "error"
    """Its case failed by a fault of the suite's own."""


_GAPS = {Coverage.UNTESTED: "bold red", Coverage.ERROR: "bold magenta"}


def coverage_of(judged: JudgedClause) -> Coverage:
    """What a run has made of a clause that its report tells of."""
    if judged.status in (Status.UNSUPPORTED, Status.UNTESTABLE):
        return Coverage(judged.status.value)
    if not judged.cases or judged.status is Status.UNJUDGED:
        return Coverage.UNTESTED
    return Coverage.ERROR if judged.status is Status.ERROR else Coverage.TESTED


def describes(judged: JudgedClause, clause: Clause) -> bool:
    """Whether a report tells of the clause as the spec has it today."""
    told = (judged.level, judged.promise, judged.source, judged.status is Status.UNTESTABLE)
    return told == (
        clause.level,
        clause.promise,
        clause.source,
        clause.untestable is not None,
    )


@frozen
class SpecCoverage:
    """What a run has made of each clause of a spec."""

    run: SavedReport
    clauses: Mapping[str, Coverage]
    """By id, in the order of the spec."""

    @classmethod
    def of(cls, run: SavedReport, spec: Spec) -> SpecCoverage:
        """The coverage of ``spec`` by ``run``. Raises SuiteError if that was of another state."""
        seen = {clause.id: clause for clause in run.clauses}
        wrong = {
            "lacks": [clause.id for clause in spec if clause.id not in seen],
            "has unknown clauses": [name for name in seen if name not in spec.clauses],
            "tells otherwise of": [
                clause.id
                for clause in spec
                if clause.id in seen and not describes(seen[clause.id], clause)
            ],
        }
        if any(wrong.values()):
            told = "; ".join(f"{what} {_some(names)}" for what, names in wrong.items() if names)
            raise SuiteError(
                f"the report is of a part of the spec, or of another state of it: it {told}; "
                "write it anew with `caldrix conformance --json FILE`"
            )
        return cls(run, {clause.id: coverage_of(seen[clause.id]) for clause in spec})

    @property
    def areas(self) -> Mapping[str, Mapping[Coverage, int]]:
        """The counts of each area."""
        areas: dict[str, list[Coverage]] = {}
        for clause_id, coverage in self.clauses.items():
            areas.setdefault(clause_id.partition(".")[0], []).append(coverage)
        return {area: _counts(found) for area, found in areas.items()}

    @property
    def counts(self) -> Mapping[Coverage, int]:
        """The counts of all areas together."""
        return _counts(list(self.clauses.values()))

    @property
    def gaps(self) -> Sequence[str]:
        """The clauses of which the run doesn't tell if they are kept, though it should."""
        return [clause_id for clause_id, coverage in self.clauses.items() if coverage in _GAPS]

    @property
    def exit_status(self) -> int:
        """1 if the run left a gap, or had a fault that may hide one."""
        return 1 if self.gaps or self.run.faults else 0

    def to_json(self) -> str:
        """The whole as JSON text."""
        value = {
            "contract": self.run.contract,
            "target": self.run.target,
            "model": self.run.model,
            "counts": _named(self.counts),
            "areas": {area: _named(counts) for area, counts in self.areas.items()},
            "clauses": {name: coverage.value for name, coverage in self.clauses.items()},
            "faults": list(self.run.faults),
        }
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

    def show(self, console: Console) -> None:
        """Print the counts, and what is wrong."""
        console.print(self._table())
        for clause_id in self.gaps:
            coverage = self.clauses[clause_id]
            console.print(Text(f"{coverage.value}: {clause_id}", _GAPS[coverage]), soft_wrap=True)
        for fault in self.run.faults:
            line = Text(f"the suite failed: {fault}", _GAPS[Coverage.ERROR])
            console.print(line, soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True)
        table.add_column("area", footer="all")
        for coverage, count in self.counts.items():
            table.add_column(coverage.value, footer=str(count), justify="right")
        table.add_column("clauses", footer=str(len(self.clauses)), justify="right")
        for area, counts in self.areas.items():
            numbers = [
                Text(str(count or ""), _GAPS.get(coverage, ""))
                for coverage, count in counts.items()
            ]
            table.add_row(area, *numbers, str(sum(counts.values())))
        return table


def _counts(found: Sequence[Coverage]) -> Mapping[Coverage, int]:
    return {coverage: found.count(coverage) for coverage in Coverage}


def _named(counts: Mapping[Coverage, int]) -> Mapping[str, int]:
    return {coverage.value: count for coverage, count in counts.items()}


def _some(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])
