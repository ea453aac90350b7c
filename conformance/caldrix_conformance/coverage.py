"""Which clauses a run of the suite has really tested, read from the report that it wrote.

A clause counts as tested when a case has judged it, kept or broken. One of which the report says
that no case ran, though nothing kept it from running, is untested: a suite must not have any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import frozen
from cattrs import BaseValidationError, Converter, transform_error
from rich.console import Console
from rich.table import Table
from rich.text import Text

from caldrix_conformance.clauses import Clause, Spec
from caldrix_conformance.errors import SuiteError
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


@frozen
class _Clause:
    id: str
    level: str
    status: Status
    promise: str
    source: str
    cases: tuple[str, ...]

    def describes(self, clause: Clause) -> bool:
        """Whether it is the clause as the spec has it today."""
        return (self.level, self.promise, self.source) == (
            clause.level.value,
            clause.promise,
            clause.source.value,
        ) and (self.status is Status.UNTESTABLE) == (clause.untestable is not None)

    @property
    def coverage(self) -> Coverage:
        """What the run has made of it."""
        if self.status in (Status.UNSUPPORTED, Status.UNTESTABLE):
            return Coverage(self.status.value)
        if not self.cases or self.status is Status.UNJUDGED:
            return Coverage.UNTESTED
        return Coverage.ERROR if self.status is Status.ERROR else Coverage.TESTED


@frozen
class RunReport:
    """What a run wrote with --json, as far as it matters here."""

    contract: str
    target: str
    model: str
    faults: tuple[str, ...]
    clauses: tuple[_Clause, ...]


@frozen
class SpecCoverage:
    """What a run has made of each clause of a spec."""

    run: RunReport
    clauses: Mapping[str, Coverage]
    """By id, in the order of the spec."""

    @classmethod
    def of(cls, run: RunReport, spec: Spec) -> SpecCoverage:
        """The coverage of ``spec`` by ``run``. Raises SuiteError if that was of another state."""
        seen = {clause.id: clause for clause in run.clauses}
        wrong = {
            "lacks": [clause.id for clause in spec if clause.id not in seen],
            "has unknown clauses": [name for name in seen if name not in spec.clauses],
            "tells otherwise of": [
                clause.id
                for clause in spec
                if clause.id in seen and not seen[clause.id].describes(clause)
            ],
        }
        if any(wrong.values()):
            told = "; ".join(f"{what} {_some(names)}" for what, names in wrong.items() if names)
            raise SuiteError(
                f"the report is of a part of the spec, or of another state of it: it {told}; "
                "write it anew with `caldrix conformance --json FILE`"
            )
        return cls(run, {clause.id: seen[clause.id].coverage for clause in spec})

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


def read_report(path: Path) -> RunReport:
    """The report in a file. Raises SuiteError, naming the file, if it isn't one."""
    try:
        return parse_report(path.read_text("utf-8"))
    except OSError as error:
        raise SuiteError(f"the report {path} can't be read: {error.strerror}") from error
    except SuiteError as error:
        raise SuiteError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path}: not a report: {error}") from error


def parse_report(text: str) -> RunReport:
    """The report that `report_json` made ``text`` of. Raises SuiteError if it did not."""
    try:
        return _converter.structure(json.loads(text), RunReport)
    except BaseValidationError as error:
        raise SuiteError(f"not a report: {transform_error(error)[0]}") from error
    except (ValueError, TypeError) as error:
        raise SuiteError(f"not a report: {error}") from error


_converter = Converter()


@_converter.register_structure_hook
def _text(value: Any, _: type[str]) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {value!r}")  # noqa: TRY004  # cattrs' own
    return value


def _counts(found: Sequence[Coverage]) -> Mapping[Coverage, int]:
    return {coverage: found.count(coverage) for coverage in Coverage}


def _named(counts: Mapping[Coverage, int]) -> Mapping[str, int]:
    return {coverage.value: count for coverage, count in counts.items()}


def _some(names: Sequence[str]) -> str:
    more = [f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else []
    return ", ".join([*names[:_NAMED], *more])
