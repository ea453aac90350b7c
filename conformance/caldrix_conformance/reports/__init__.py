"""A run's report in every form: for people, for programs, for CI, for a badge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from caldrix_conformance.errors import SuiteError
from caldrix_conformance.options import Options
from caldrix_conformance.reports.badge import badge_json
from caldrix_conformance.reports.data import report_json
from caldrix_conformance.reports.junit import junit_xml
from caldrix_conformance.reports.page import page_html
from caldrix_conformance.reports.terminal import print_report
from caldrix_conformance.verdicts import Report

__all__ = ["print_report", "probe_files", "write_files"]


def _files(options: Options) -> Iterator[tuple[Path, Callable[[Report], str]]]:
    forms = (
        (options.json, report_json),
        (options.junit, junit_xml),
        (options.html, page_html),
        (options.badge, badge_json),
    )
    return ((path, form) for path, form in forms if path is not None)


def probe_files(options: Options) -> None:
    """Raise SuiteError, before any work is done, for a file that can't be written."""
    paths = [path.absolute() for path, _ in _files(options)]
    if len(set(paths)) < len(paths):
        raise SuiteError("two forms of the report would be written to one file; name two")
    for path, _ in _files(options):
        if path.is_dir() or not path.absolute().parent.is_dir():
            wanted = "is a folder" if path.is_dir() else "has no folder to be in"
            raise SuiteError(f"the report can't be written to {path}: it {wanted}")


def write_files(report: Report, options: Options) -> None:
    """Write the forms that were asked for. Raises SuiteError, naming the file, if one can't be."""
    for path, form in _files(options):
        try:
            path.write_text(form(report), "utf-8", errors="backslashreplace")
        except OSError as error:
            raise SuiteError(f"the report can't be written to {path}: {error.strerror}") from error
