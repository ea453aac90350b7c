"""`caldrix conformance`: the conformance suite against a server, by default one started for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from attrs import evolve
from cyclopts import Parameter

from caldrix.errors import CaldrixError, Refusal
from caldrix.weights.names import DEFAULT_MODEL
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.resources import spec_directory
from caldrix_conformance.run import Settings, run

_ADDRESS = "address"
_STOPS_WITHIN = 10.0
"""Seconds for a server that has nothing left to do."""


class ServerNotStarted(CaldrixError):
    """The server that the suite was to judge ended before it was ready."""


def conformance(
    url: str | None = None,
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
    """Judge a server by the clauses of its contract, whoever wrote it.

    Parameters
    ----------
    url
        Where the server is, as in http://localhost:8425; without it one is started on smollm2.
    contract
        The contract to judge it by.
    model
        The model to ask for; by default the one that /v1/models names.
    without
        A capability that the server lacks; may be repeated.
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
    settings = Settings(
        url=url or "",
        contract=contract,
        model=model,
        without=[capability.value for capability in without],
        only=only,
        strict=strict,
        json=json,
        verbose=verbose,
        write_goldens=write_goldens,
    )
    if url is not None:
        return run(settings)
    try:
        spec_directory(contract)
    except SuiteError as error:
        raise Refusal(str(error)) from None
    with _own_server() as address:
        return run(evolve(settings, url=address))


@contextmanager
def _own_server() -> Iterator[str]:
    """A server on the embedded model and a free port; gives its address, and ends it."""
    entry = "from caldrix.cli.main import main; main()"
    command = [sys.executable, "-c", entry, "serve", DEFAULT_MODEL, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield _address(server.stdout)
        finally:
            server.terminate()
            try:
                server.wait(_STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                server.kill()


def _address(lines: Iterable[str]) -> str:
    """The address in what a server prints once it is ready. Raises ServerNotStarted without one."""
    for line in lines:
        name, _, value = line.strip().partition(" ")
        if name == _ADDRESS:
            return value.split(",")[0].strip()
    raise ServerNotStarted(
        f"the server on {DEFAULT_MODEL} ended before it was ready; start one with `caldrix serve` "
        "and give its address"
    )
