"""``just conformance-foreign``: the suite on servers that others wrote, and on ours beside them.

All serve the embedded model's file. What a foreign server breaks is its own affair: the exit
status is 1 if a server did not start, broke off, or the suite itself failed, and else 0.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.console import Console

from caldrix.weights.names import DEFAULT_MODEL, pull
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.options import Settings
from caldrix_conformance.reports import print_report, write_files
from caldrix_conformance.run import judge
from caldrix_conformance.saved import read_report
from caldrix_conformance.side_by_side import markdown
from caldrix_conformance.verdicts import Status
from tests.foreign.servers import Server, caldrix, llama_cpp_python, llama_server
from tests.foreign.serving import ServerNotStarted, serving

app = App(name="just conformance-foreign", help_format="plaintext")


@app.default
def main(
    *,
    python: Path,
    reports: Path = Path("foreign-reports"),
    only: Annotated[tuple[str, ...], Parameter(negative=())] = (),
) -> int:
    """Judge llama-cpp-python's server, llama-server where it is on the PATH, and our own.

    Parameters
    ----------
    python
        The interpreter of the environment that llama-cpp-python is installed in.
    reports
        The folder for the reports and the servers' logs.
    only
        Judge only the clauses whose id matches this pattern, as in 'chat.*'; may be repeated.
    """
    reports.mkdir(parents=True, exist_ok=True)
    model = pull(DEFAULT_MODEL).path
    done: dict[str, Path] = {}
    well = True
    for server in _servers(python):
        path = reports / f"{server.name}.json"
        path.unlink(missing_ok=True)
        try:
            well &= _judge(server, model, path, only)
        except (ServerNotStarted, SuiteError) as error:
            print(error, file=sys.stderr)
            well = False
        if path.exists():
            done[server.title] = path
    if done:
        table = markdown({title: read_report(path) for title, path in done.items()})
        (reports / "table.md").write_text(table, "utf-8")
        print(f"\n{table}")
    print(f"reports and logs: {reports.absolute()}")
    return 0 if well else 1


def _servers(python: Path) -> Iterator[Server]:
    yield caldrix()
    yield llama_cpp_python(python)
    on_the_path = llama_server()
    if on_the_path is None:
        print("no llama-server on the PATH, so it is not judged", file=sys.stderr)
    else:
        yield on_the_path


def _judge(server: Server, model: Path, path: Path, only: tuple[str, ...]) -> bool:
    """Run the suite and write its reports; whether the suite did its part."""
    print(f"{server.title}:", file=sys.stderr)
    with serving(server, model, path.with_suffix(".log")) as url:
        settings = Settings(url=url, only=only, json=path, html=path.with_suffix(".html"))
        report = judge(settings)
    if report is None:
        return False
    print_report(report, Console())
    write_files(report, settings)
    return not report.faults and not report.counts()[Status.ERROR]


if __name__ == "__main__":
    # As Ctrl-C does: pytest would take SystemExit for a case's own and go on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(app(sys.argv[1:]))
