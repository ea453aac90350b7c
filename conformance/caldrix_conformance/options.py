"""What a person may ask of a run: the flags of the command line, declared once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from attrs import frozen
from cyclopts import Parameter, validators

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.target import TIMEOUT

_POSITIVE = Parameter(negative=())


@Parameter(name="*")
@frozen(kw_only=True)
class Options:
    """The flags of `caldrix conformance` and `python -m caldrix_conformance`."""

    contract: str = "caldrix"
    """The contract to judge it by."""

    model: str | None = None
    """The model to ask for; by default the one that /v1/models names."""

    without: Annotated[Sequence[Capability], _POSITIVE] = ()
    """A capability that the target lacks; may be repeated."""

    only: Annotated[Sequence[str], _POSITIVE] = ()
    """Judge only the clauses whose id matches this pattern, as in 'chat.*'; may be repeated."""

    strict: Annotated[bool, _POSITIVE] = False
    """Let a broken should fail the run as well."""

    verbose: Annotated[bool, _POSITIVE] = False
    """Show the clauses that are kept, too."""

    timeout: Annotated[float, Parameter(validator=validators.Number(gt=0))] = TIMEOUT
    """Seconds to wait for bytes before an answer counts as missing."""

    json: Path | None = None
    """Write the whole report to this file."""

    junit: Path | None = None
    """Write the report as JUnit XML, a test case a clause."""

    html: Path | None = None
    """Write the report as one page, with what went over the wire where a clause is broken."""

    badge: Path | None = None
    """Write the counts as JSON for a badge, in the form that shields.io reads."""

    write_goldens: Annotated[bool, _POSITIVE] = False
    """Write the goldens from this server's answers. Only in a checkout; read the difference."""


@frozen(kw_only=True)
class Settings(Options):
    """A run to be made: its options, and the target."""

    url: str
