"""``python -m caldrix_conformance URL``: the suite from the command line."""

from __future__ import annotations

import sys

from attrs import asdict
from cyclopts import App

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


if __name__ == "__main__":
    sys.exit(app(sys.argv[1:]))
