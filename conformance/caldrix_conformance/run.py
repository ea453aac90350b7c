"""One run of the suite: pytest on its own cases, apart from any other use of pytest here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase

import pytest
import syrupy
from rich.console import Console

from caldrix_conformance import plugin
from caldrix_conformance.clauses import load_spec
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.options import Settings
from caldrix_conformance.progress import ProgressBar
from caldrix_conformance.reports import print_report, probe_files, write_files
from caldrix_conformance.resources import CASES, spec_directory
from caldrix_conformance.target import Target
from caldrix_conformance.verdicts import Report

# What a person's shell may set for their own test runs, and would change ours.
_PYTEST_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_XDIST_WORKER")


def run(settings: Settings) -> int:
    """Run the suite and print its report; return the exit status. How far it is goes to stderr.

    0: every must is kept (with ``strict`` every should, too); 1: one is broken, or the suite
    itself failed; 2: there is nothing to judge, said in one line on stderr. A run that is
    interrupted reports what it has seen, and raises KeyboardInterrupt.
    """
    try:
        probe_files(settings)
        try:
            report = judge(settings)
        except Interrupted as interrupted:
            _tell(interrupted.report, settings)
            raise
        if report is None:
            return 2
        _tell(report, settings)
    except SuiteError as error:
        print(error, file=sys.stderr)
        return 2
    return report.exit_status(strict=settings.strict)


def _tell(report: Report, settings: Settings) -> None:
    print_report(report, Console(), every_clause=settings.verbose)
    write_files(report, settings)


class Interrupted(KeyboardInterrupt):
    """A run was interrupted; ``report`` is of what it had judged by then."""

    def __init__(self, report: Report) -> None:
        super().__init__()
        self.report = report


def judge(settings: Settings) -> Report | None:
    """Run the cases; return the report, or None if pytest has told on stderr why it did not.

    Raises SuiteError if the spec can't be read, no server answers, or Python leaves checks out;
    Interrupted on Ctrl-C.
    """
    if not __debug__:
        raise SuiteError("python -O takes the checks out of the cases; run the suite without it")
    spec = load_spec(spec_directory(settings.contract))
    for glob in settings.only:
        if not any(fnmatchcase(clause.id, glob) for clause in spec):
            raise SuiteError(
                f"no clause of {settings.contract} is called {glob!r}; `spec list` shows them all"
            )
    with Target.connect(settings.url, settings.model, settings.timeout):
        pass
    keeper = _ReportKeeper()
    with _own_pytest():
        # As modules, not by name: by name pytest would warn that they are imported already.
        plugins = [syrupy, plugin, keeper, ProgressBar(Console(stderr=True))]
        status = pytest.main(_arguments(settings), plugins=plugins)
    if status == pytest.ExitCode.INTERRUPTED:
        if keeper.report is None:
            raise KeyboardInterrupt
        raise Interrupted(keeper.report)
    return keeper.report


class _ReportKeeper:
    """Takes the report out of pytest's session."""

    report: Report | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        # Pytest's own ways to show a failure parse its source, for a terminal that isn't there.
        config.option.tbstyle = "native"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus != pytest.ExitCode.USAGE_ERROR:
            self.report = plugin.report_of(session.config)

    def pytest_internalerror(self, excrepr: object) -> None:
        # Without a terminal reporter nobody else would tell.
        print(excrepr, file=sys.stderr)


def _arguments(settings: Settings) -> list[str]:
    cases = CASES / settings.contract
    return [
        str(cases),
        f"--config-file={CASES / 'pytest.toml'}",
        f"--rootdir={CASES}",
        f"--confcutdir={CASES}",
        "--continue-on-collection-errors",
        # Every check says itself what it saw, so nothing is rewritten, nor cached beside the cases.
        "--assert=plain",
        "--disable-plugin-autoload",
        *("-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:capture", "-p", "no:logging"),
        # A leak of the suite's is for its own tests to find, not for the person who runs it.
        *("-p", "no:unraisableexception", "-p", "no:threadexception"),
        f"--target={settings.url}",
        f"--contract={settings.contract}",
        f"--timeout={settings.timeout}",
        *([f"--model={settings.model}"] if settings.model is not None else ()),
        *(f"--without={capability.value}" for capability in settings.without),
        *(f"--only={glob}" for glob in settings.only),
        *(["--write-goldens"] if settings.write_goldens else ()),
    ]


@contextmanager
def _own_pytest() -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in _PYTEST_VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
