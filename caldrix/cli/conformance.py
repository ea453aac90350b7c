"""`caldrix conformance`: the conformance suite against a server, by default one started for it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from attrs import asdict, evolve

from caldrix.cli.termination import ended_by_sigterm
from caldrix.errors import CaldrixError, Refusal
from caldrix.weights.names import DEFAULT_MODEL
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.options import Options, Settings
from caldrix_conformance.resources import spec_directory
from caldrix_conformance.run import run

_DEFAULTS = Options()
_ADDRESS = "address"
_STOPS_WITHIN = 10.0
"""Seconds for a server that has nothing left to do."""


class ServerNotStarted(CaldrixError):
    """The server that the suite was to judge ended before it was ready."""


def conformance(url: str | None = None, /, *, options: Options = _DEFAULTS) -> int:
    """Judge a server by the clauses of its contract, whoever wrote it.

    Parameters
    ----------
    url
        Where the server is, as in http://localhost:8425; without it one is started on smollm2.
    """
    settings = Settings(url=url or "", **asdict(options, recurse=False))
    if url is not None:
        return run(settings)
    try:
        spec_directory(options.contract)
    except SuiteError as error:
        raise Refusal(str(error)) from None
    with own_server() as address:
        return run(evolve(settings, url=address))


@contextmanager
def own_server() -> Iterator[str]:
    """A server on the embedded model and a free port; gives its address, and ends it."""
    entry = "from caldrix.cli.main import main; main()"
    command = [sys.executable, "-c", entry, "serve", DEFAULT_MODEL, "--port", "0"]
    # All that it can do is judged; and between the suite's lines, one a request would be too many.
    command += ["--speculate", "ngram", "--log-level", "warning"]
    with (
        ended_by_sigterm(as_interrupt=True),
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        assert server.stdout is not None
        try:
            yield address_in(server.stdout)
        finally:
            server.terminate()
            try:
                server.wait(_STOPS_WITHIN)
            except subprocess.TimeoutExpired:
                server.kill()


def address_in(lines: Iterable[str]) -> str:
    """The address in what a server prints once it is ready. Raises ServerNotStarted without one."""
    for line in lines:
        name, _, value = line.strip().partition(" ")
        if name == _ADDRESS:
            return value.split(",")[0].strip()
    raise ServerNotStarted(
        f"the server on {DEFAULT_MODEL} ended before it was ready; start one with `caldrix serve` "
        "and give its address"
    )
