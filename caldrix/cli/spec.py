"""`caldrix spec`: the clauses of a contract, what a run tests of them, and what became of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from caldrix.cli.conformance import own_server
from caldrix.errors import CaldrixError, Refusal
from caldrix_conformance.clauses import Clause, Level, Spec, load_spec
from caldrix_conformance.coverage import SpecCoverage
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.options import Options, Settings
from caldrix_conformance.reports.data import report_json
from caldrix_conformance.resources import spec_directory
from caldrix_conformance.run import judge
from caldrix_conformance.saved import SavedReport, parse_report, read_report
from caldrix_conformance.spec_diff.command import spec_diff

_CONTRACT = Options().contract
_Json = Annotated[bool, Parameter(name="--json", negative="")]

app = App(name="spec", help="A contract's clauses: what it promises, clause by clause.")


@app.command(name="list")
def list_clauses(
    *,
    contract: str = _CONTRACT,
    area: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    level: Annotated[tuple[Level, ...], Parameter(negative=())] = (),
    as_json: _Json = False,
) -> int:
    """List the clauses of a contract.

    On a terminal this is a table; elsewhere each line has an id, a level and a promise, with tabs
    between them.

    Parameters
    ----------
    contract
        The contract whose clauses they are.
    area
        Only those of this area, the first part of an id; may be repeated.
    level
        Only those of this level; may be repeated.
    as_json
        Print JSON instead, with all that is known of a clause.
    """
    spec = _spec(contract)
    areas = dict.fromkeys(clause.area for clause in spec)
    for name in area:
        if name not in areas:
            raise Refusal(f"{contract} has no area {name!r}; it has {', '.join(areas)}")
    clauses = [
        clause
        for clause in spec
        if (not area or clause.area in area) and (not level or clause.level in level)
    ]
    console = Console(markup=False, highlight=False)
    if as_json:
        print(
            json.dumps([_clause_json(clause) for clause in clauses], indent=2, ensure_ascii=False)
        )
    elif console.is_terminal:
        console.print(_clause_table(clauses))
        console.print(f"{len(clauses)} of {len(spec)} clauses of {contract}")
    else:
        for clause in clauses:
            print(clause.id, clause.level.value, " ".join(clause.promise.split()), sep="\t")
    return 0


@app.command
def coverage(
    report: Path | None = None, /, *, contract: str | None = None, as_json: _Json = False
) -> int:
    """Show which clauses a run of the conformance suite has tested, area by area.

    Exit status: 1 if a clause that could be tested was not, and its id is told.

    Parameters
    ----------
    report
        What `caldrix conformance --json FILE` wrote; without it the suite is run on a server that
        is started on smollm2.
    contract
        The contract; by default the report's, or caldrix.
    as_json
        Print JSON instead.
    """
    with _refusals():
        run = _fresh_run(contract or _CONTRACT) if report is None else read_report(report)
        if contract not in (None, run.contract):
            raise Refusal(f"{report} is a report of the contract {run.contract}, not {contract}")
        found = SpecCoverage.of(run, _spec(run.contract))
    if as_json:
        print(found.to_json(), end="")
    else:
        found.show(Console(highlight=False))
    return found.exit_status


@app.command
def diff(
    revision: str | None = None, /, *, contract: str = _CONTRACT, as_json: _Json = False
) -> int:
    """Show what became of the clauses since a revision, with the cases and goldens that moved.

    It compares the working tree of the git checkout around the current folder. Exit status: 1 if a
    promise changed, or is new, while no case or golden of it moved.

    Parameters
    ----------
    revision
        A commit, branch or tag; by default where this work left origin/main, or HEAD's parent.
    contract
        The contract whose clauses they are.
    as_json
        Print JSON instead of markdown.
    """
    with _refusals():
        return spec_diff(revision, contract=contract, as_json=as_json)


def _spec(contract: str) -> Spec:
    with _refusals():
        return load_spec(spec_directory(contract))


def _fresh_run(contract: str) -> SavedReport:
    _spec(contract)  # before a server is started for nothing
    with own_server() as address:
        report = judge(Settings(url=address, contract=contract))
    if report is None:
        raise CaldrixError("the suite did not run, for the reason above")
    return parse_report(report_json(report))


@contextmanager
def _refusals() -> Iterator[None]:
    """What the suite can't do is refused at start, as anything else."""
    try:
        yield
    except SuiteError as error:
        raise Refusal(str(error)) from None


def _clause_json(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause.id,
        "area": clause.area,
        "level": clause.level.value,
        "promise": clause.promise,
        "where": clause.where,
        "needs": sorted(capability.value for capability in clause.needs),
        "source": clause.source.value,
        "untestable": clause.untestable,
    }


def _clause_table(clauses: Iterable[Clause]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("clause", no_wrap=True)
    table.add_column("level")
    table.add_column("promise", overflow="fold", ratio=1)
    table.add_column("needs", style="dim")
    for clause in clauses:
        promise = Text(clause.promise)
        if clause.untestable is not None:
            promise.append(f" (untestable: {clause.untestable})", style="dim")
        needs = ", ".join(sorted(capability.value for capability in clause.needs))
        table.add_row(clause.id, clause.level.value, promise, needs)
    return table
