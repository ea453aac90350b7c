"""How the benchmark scripts end when something foreseen fails: with one line, as caldrix does."""

from __future__ import annotations

import sys
from collections.abc import Callable

from cyclopts import App

from caldrix.errors import CaldrixError, Refusal


def run_script(command: Callable[..., int | None], name: str) -> None:
    """Runs the command with the arguments that the process was started with.

    What it returns is the exit status.
    """
    app = App(name=name, version_flags=[])
    app.default(command)
    try:
        sys.exit(app(result_action="return_value"))
    except (CaldrixError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, Refusal) else 1)
