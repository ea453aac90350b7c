"""What benchmark scripts share: how they print, and how they end.

When something foreseen fails, that is with one line, as caldrix does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from cyclopts import App
from rich.console import Console

from caldrix.errors import CaldrixError, Refusal

_WIDTH = 110


def table_console() -> Console:
    """For tables of many columns, also where a terminal is narrower or there is none."""
    width = max(_WIDTH, Console().width)
    return Console(markup=False, highlight=False, soft_wrap=True, width=width)


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
