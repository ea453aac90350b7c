"""Reports read back: what a run wrote with ``--json``, as far as coverage and tables need it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen
from cattrs import BaseValidationError, Converter, transform_error

from caldrix_conformance.clauses import Level, Source
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.verdicts import Status


@frozen
class JudgedClause:
    """What a report says of one clause."""

    id: str
    level: Level
    status: Status
    promise: str
    source: Source
    cases: Sequence[str]

    @property
    def area(self) -> str:
        """The first part of the id."""
        return self.id.partition(".")[0]


@frozen
class SavedReport:
    """A whole run."""

    contract: str
    target: str
    model: str
    faults: Sequence[str]
    clauses: Sequence[JudgedClause]


def read_report(path: Path) -> SavedReport:
    """The report in a file. Raises SuiteError, naming the file, if it isn't one."""
    try:
        return parse_report(path.read_text("utf-8"))
    except OSError as error:
        raise SuiteError(f"the report {path} can't be read: {error.strerror}") from error
    except SuiteError as error:
        raise SuiteError(f"{path}: {error}") from error
    except UnicodeDecodeError as error:
        raise SuiteError(f"{path}: not a report: {error}") from error


def parse_report(text: str) -> SavedReport:
    """The report that `report_json` made ``text`` of. Raises SuiteError if it did not."""
    try:
        return _converter.structure(json.loads(text), SavedReport)
    except BaseValidationError as error:
        raise SuiteError(f"not a report: {transform_error(error)[0]}") from error
    except (ValueError, TypeError) as error:
        raise SuiteError(f"not a report: {error}") from error


_converter = Converter()


@_converter.register_structure_hook
def _text(value: Any, _: type[str]) -> str:
    # cattrs would turn a number into its digits.
    if not isinstance(value, str):
        raise ValueError(f"expected a text, got {value!r}")  # noqa: TRY004  # cattrs' own
    return value
