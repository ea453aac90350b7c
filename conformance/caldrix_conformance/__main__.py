"""``python -m caldrix_conformance URL``: the suite from the command line."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from attrs import asdict
from cyclopts import App, CycloptsError

from caldrix_conformance.options import Options, Settings
from caldrix_conformance.run import run

app = App(name="python -m caldrix_conformance", help_format="plaintext")

_DEFAULTS = Options()


@app.default
def main(url: str, /, *, options: Options = _DEFAULTS) -> int:
    """Judge the server at URL by the clauses of its contract.

    Exit status: 0 if every must is kept, 1 if one is broken, 2 if there is nothing to judge.

    Parameters
    ----------
    url
        Where the server is, as in http://localhost:8425.
    """
    return run(Settings(url=url, **asdict(options, recurse=False)))


def _execute(arguments: Sequence[str]) -> int:
    try:
        status = app(arguments, exit_on_error=False, result_action="return_value")
    except CycloptsError:
        # It has been printed.
        return 2
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(_execute(sys.argv[1:]))
