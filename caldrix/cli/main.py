"""The ``caldrix`` command: its subcommands, and how a failure ends it.

Exit statuses: 0 done, 1 failed while running, 2 wrong usage or a refusal at start, which is named
on stderr in one line that says what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

from cyclopts import App, CycloptsError

from caldrix.cli import models
from caldrix.cli.conformance import conformance
from caldrix.cli.doctor import doctor
from caldrix.cli.pull import pull
from caldrix.cli.run import run
from caldrix.cli.serve import serve
from caldrix.errors import CaldrixError, Refusal

FAILED = 1
REFUSED = 2


def build_app() -> App:
    """The command line, with every subcommand."""
    app = App(
        name="caldrix",
        help="Serve a language model on this machine, with its documentation kept.",
        version=version("caldrix"),
        help_format="markdown",
    )
    for command in (serve, run, pull, doctor, conformance):
        app.command(command)
    app.command(models.app)
    return app


def execute(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit status."""
    try:
        status = build_app()(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except CycloptsError as error:
        return _end(REFUSED, f"{str(error).rstrip('.')}; see `caldrix --help`")
    except Refusal as error:
        return _end(REFUSED, str(error))
    except CaldrixError as error:
        return _end(FAILED, str(error))
    except KeyboardInterrupt:
        return _end(FAILED, "interrupted")
    return status if isinstance(status, int) else 0


def main() -> None:
    """The console script."""
    sys.exit(execute(sys.argv[1:]))


def _end(status: int, message: str) -> int:
    line = " ".join(message.split())
    print(f"caldrix: {line}", file=sys.stderr)
    return status
