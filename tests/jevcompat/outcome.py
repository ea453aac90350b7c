"""What jevcompat found of a server, and how that departs from the table of known differences."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path

from attrs import frozen
from cattrs import BaseValidationError, Converter, transform_error

from caldrix_conformance.errors import SuiteError
from tests.jevcompat.table import Difference, Table


class Result(Enum):
    """What became of a rule."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@frozen
class Finding:
    """One time that a rule was broken."""

    case: str


@frozen
class Rule:
    """A rule, and what became of it."""

    id: str
    status: Result
    findings: tuple[Finding, ...] = ()


@frozen
class Summary:
    """What is left to judge: rules that every server must keep and that no request tried."""

    untested_musts: tuple[str, ...]


@frozen(kw_only=True)
class Outcome:
    """A run of jevcompat, as far as it is compared."""

    tool_version: str
    results: tuple[Rule, ...]
    aborted: str | None
    """Why there was nothing to be tested, if so."""
    case_errors: tuple[tuple[str, str], ...]
    inconclusive: tuple[str, ...]
    summary: Summary


_converter = Converter()


def read_outcome(path: Path) -> Outcome:
    """The report that jevcompat wrote with --json. Raises SuiteError if it is none."""
    try:
        return _converter.structure(json.loads(path.read_bytes()), Outcome)
    except FileNotFoundError as error:
        raise SuiteError(f"jevcompat wrote no {path}; what it said above tells why") from error
    except ValueError as error:
        raise SuiteError(f"{path} is not JSON: {error}") from error
    except BaseValidationError as error:
        told = "; ".join(transform_error(error))
        raise SuiteError(f"{path} is no report of jevcompat: {told}") from error


def departures(outcome: Outcome, table: Table, applying: Sequence[Difference]) -> Iterator[str]:
    """A sentence for all in which ``outcome`` is not what ``table`` foresees.

    ``applying`` are the differences that count for this server.
    """
    if outcome.tool_version != table.version:
        yield f"the table is of {table.tool} {table.version}, and this is {outcome.tool_version}"
    if outcome.aborted is not None:
        yield f"nothing was tested: {outcome.aborted}"
        return
    for told in (*map(": ".join, outcome.case_errors), *outcome.inconclusive):
        yield f"a case came to no end: {told}"
    for name in outcome.summary.untested_musts:
        yield f"{name} was not tested"
    rules = {rule.id for rule in outcome.results}
    for one in table.difference:
        if one.rule not in rules:
            yield f"{one.rule} is in the table and is no rule of {table.tool}"
    foreseen = {one.rule: one for one in applying}
    for rule in outcome.results:
        yield from _departures_of(rule, foreseen.get(rule.id))


def _departures_of(rule: Rule, foreseen: Difference | None) -> Iterator[str]:
    if foreseen is None:
        if rule.status is Result.FAIL:
            yield f"{rule.id} is broken, and the document does not want it so"
    elif rule.status is not Result.FAIL:
        became = "kept" if rule.status is Result.PASS else "not tested"
        yield f"{rule.id} is in the table, and was {became}"
    else:
        cases = {finding.case for finding in rule.findings}
        for case in sorted(case for case in cases if not foreseen.explains(case)):
            yield f"{rule.id} is broken in {case}, too, where the document does not want it so"
