"""A run's report as one page that needs nothing else: with the traffic of each failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

from attrs import frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from caldrix_conformance.clauses import Level
from caldrix_conformance.traffic import Exchange
from caldrix_conformance.verdicts import Observation, Report, Status, Verdict

_TEMPLATES = Path(__file__).parent


@frozen
class _Shown:
    """An exchange on the page: in full where it first comes, then by its number."""

    number: int
    exchange: Exchange
    first: bool


@frozen
class _Failure:
    observation: Observation
    exchanges: Sequence[_Shown]


@frozen
class _Row:
    verdict: Verdict
    failures: Sequence[_Failure]


@frozen
class _Area:
    name: str
    counts: Mapping[Status, int]
    rows: Sequence[_Row]


def page_html(report: Report) -> str:
    """The page. Everything a target said is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        report=report,
        areas=_areas(report),
        statuses=list(Status),
        counts=report.counts(),
        unjudged=report.counts()[Status.UNJUDGED],
        broken={level: len(report.broken(level)) for level in Level},
    )


def _areas(report: Report) -> Sequence[_Area]:
    numbers: dict[int, int] = {}
    areas: list[_Area] = []
    for name, group in groupby(report.verdicts, key=lambda verdict: verdict.clause.area):
        verdicts = list(group)
        counts = {status: sum(v.status is status for v in verdicts) for status in Status}
        areas.append(_Area(name, counts, [_row(verdict, numbers) for verdict in verdicts]))
    return areas


def _row(verdict: Verdict, numbers: dict[int, int]) -> _Row:
    return _Row(verdict, [_failure(observation, numbers) for observation in verdict.failures])


def _failure(observation: Observation, numbers: dict[int, int]) -> _Failure:
    shown: list[_Shown] = []
    for exchange in observation.traffic:
        first = id(exchange) not in numbers
        number = numbers.setdefault(id(exchange), len(numbers) + 1)
        shown.append(_Shown(number, exchange, first))
    return _Failure(observation, shown)
