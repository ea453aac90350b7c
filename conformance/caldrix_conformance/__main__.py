"""``python -m caldrix_conformance URL``: the suite from the command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.run import Settings, run

app = App(name="python -m caldrix_conformance", help_format="plaintext")


@app.default
def main(
    url: str,
    /,
    *,
    contract: str = "caldrix",
    model: str | None = None,
    without: Annotated[tuple[Capability, ...], Parameter(negative=())] = (),
    only: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    strict: bool = False,
    json: Path | None = None,
    verbose: bool = False,
    write_goldens: bool = False,
) -> int:
    """Judge the server at URL by the clauses of its contract.

    Exit status: 0 if every must is kept, 1 if one is broken, 2 if there is nothing to judge.

    Parameters
    ----------
    url
        Where the server is, as in http://localhost:8425.
    contract
        The contract to judge it by.
    model
        The model to ask for; by default the one that /v1/models names.
    without
        A capability that the target lacks; may be repeated.
    only
        Judge only the clauses whose id matches this pattern, as in 'chat.*'; may be repeated.
    strict
        Let a broken should fail the run as well.
    json
        Write the whole report to this file.
    verbose
        Show the clauses that are kept, too.
    write_goldens
        Write the goldens from this server's answers. Only in a checkout; read the difference.
    """
    return run(
        Settings(
            url=url,
            contract=contract,
            model=model,
            without=[capability.value for capability in without],
            only=only,
            strict=strict,
            json=json,
            verbose=verbose,
            write_goldens=write_goldens,
        )
    )


if __name__ == "__main__":
    sys.exit(app(sys.argv[1:]))
