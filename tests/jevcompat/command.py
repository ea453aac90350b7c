"""``just jevcompat``: another project's rules for decisions, on our server or one that runs.

Where a rule is broken because the document wants otherwise, spec/caldrix/differences says so. The
exit status is 0 if just those are, 1 if another is or one of those is kept or nothing could be
told, and 2 if the table itself is wrong.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cyclopts import App

from caldrix.weights.names import DEFAULT_MODEL, pull
from caldrix_conformance.clauses import load_spec
from caldrix_conformance.contracts import discovery_of
from caldrix_conformance.errors import SpecError, SuiteError
from caldrix_conformance.resources import spec_directory
from caldrix_conformance.target import Target
from tests.foreign.servers import caldrix
from tests.foreign.serving import ServerNotStarted, serving
from tests.jevcompat.outcome import departures, read_outcome
from tests.jevcompat.table import read_table

CONTRACT = "caldrix"
TABLE = spec_directory(CONTRACT) / "differences/jevcompat.toml"

app = App(name="just jevcompat", help_format="plaintext")


@app.default
def main(
    url: str | None = None,
    *,
    program: Path,
    reports: Path = Path("jevcompat-reports"),
) -> int:
    """Ask a server by jevcompat, and hold what it found against the document.

    Parameters
    ----------
    url
        The server's address; without one, our own is started on the embedded model.
    program
        The jevcompat to run.
    reports
        The folder for jevcompat's report, and our server's log.
    """
    reports.mkdir(parents=True, exist_ok=True)
    try:
        with _served(reports) if url is None else _running(url) as address:
            found = _departures(address, program, reports / "report.json")
    except SpecError as error:
        print(error, file=sys.stderr)
        return 2
    except (SuiteError, ServerNotStarted) as error:
        print(error, file=sys.stderr)
        return 1
    for told in found:
        print(told, file=sys.stderr)
    return 1 if found else 0


@contextmanager
def _served(reports: Path) -> Iterator[str]:
    with serving(caldrix(), pull(DEFAULT_MODEL).path, reports / "server.log") as url:
        yield url


@contextmanager
def _running(url: str) -> Iterator[str]:
    yield url


def _departures(url: str, program: Path, report: Path) -> list[str]:
    """Run jevcompat; a sentence for each way in which it did not come out as foreseen."""
    spec = load_spec(spec_directory(CONTRACT))
    table = read_table(TABLE, spec)
    report.unlink(missing_ok=True)
    with Target.connect(url) as target:
        applying = table.applying(spec, discovery_of(CONTRACT)(target, set()))
        asked = ["test", target.url, "--model", target.model, "--json", str(report)]
    # The environment's proxies are for the world outside.
    subprocess.run([str(program), *asked], env={**os.environ, "no_proxy": "*", "NO_PROXY": "*"})
    found = list(departures(read_outcome(report), table, applying))
    if not found:
        rules = ", ".join(one.rule for one in applying)
        print(f"as the document wants it: {len(applying)} rules are broken, {rules}")
    return found
