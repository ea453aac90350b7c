"""Clauses: the observable promises of a contract, as data read from spec/<contract>/<area>.toml.

A file has a ``title``, the capabilities that all of its clauses ``need``, and a list of ``clause``
tables. Reading is strict: a misspelt key or a second clause of the same id is an error, since
either would quietly weaken the suite.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
from attrs import field, frozen
from cattrs import BaseValidationError, Converter, transform_error
from cattrs.v import format_exception

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.errors import SpecError

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(\.[a-z0-9]+(-[a-z0-9]+)*)+")
"""What a clause's id must look like."""


class Level(Enum):
    """What it means to break a clause: a must fails the run, a should does with ``--strict``."""

    MUST = "must"
    SHOULD = "should"
    MAY = "may"


class Source(Enum):
    """Who makes the promise: the contract's document, or this project where that is silent."""

    DOCUMENT = "document"
    CHOICE = "choice"


@frozen(kw_only=True)
class Clause:
    """One observable promise."""

    id: str
    level: Level
    promise: str
    where: str
    """The heading in the document under which it stands, or which leaves it open."""
    needs: frozenset[Capability] = frozenset()
    source: Source = Source.DOCUMENT
    untestable: str | None = None
    """Why no black-box case can judge it, for a clause without cases."""

    @property
    def area(self) -> str:
        """The first part of the id, which is also its file's name."""
        return self.id.partition(".")[0]


@frozen
class Spec:
    """All clauses of a contract, by id, in the order of the files."""

    contract: str
    clauses: Mapping[str, Clause]

    def __iter__(self) -> Iterator[Clause]:
        return iter(self.clauses.values())

    def __len__(self) -> int:
        return len(self.clauses)

    def clause(self, clause_id: str) -> Clause:
        """The clause of that id. Raises SpecError if there is none."""
        try:
            return self.clauses[clause_id]
        except KeyError:
            raise SpecError(
                f"{clause_id!r} is no clause of the contract {self.contract!r}"
            ) from None


@frozen(kw_only=True)
class Area:
    """A clause file."""

    title: str
    needs: frozenset[Capability] = frozenset()
    clause: tuple[Clause, ...] = field()

    @clause.validator
    def _not_empty(self, attribute: object, value: tuple[Clause, ...]) -> None:
        if not value:
            raise ValueError("an area without clauses")


_converter = Converter(forbid_extra_keys=True)


@_converter.register_structure_hook
def _text(value: Any, _: type[str]) -> str:
    # cattrs would turn a number into its digits.
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r}")
    return value


def _explain(error: BaseException, type_: type[Any] | None) -> str:
    # Where a value is wrong cattrs says no more than that; the error itself says how.
    return str(error) if isinstance(error, ValueError) else format_exception(error, type_)


def load_spec(directory: Path) -> Spec:
    """Read the clauses of the contract whose files are in ``directory``.

    Raises SpecError, naming the file, for anything that is not as it should be.
    """
    clauses: dict[str, Clause] = {}
    paths = sorted(directory.glob("*.toml"))
    if not paths:
        raise SpecError(f"{directory} holds no clause files (*.toml)")
    for path in paths:
        for clause in _read_area(path.name, path.read_text("utf-8")):
            if clause.id in clauses:
                raise SpecError(f"{path.name}: the clause {clause.id!r} is there twice")
            clauses[clause.id] = clause
    return Spec(directory.name, clauses)


@lru_cache
def _read_area(name: str, text: str) -> Sequence[Clause]:
    """The clauses in the ``text`` of a file called ``name``, read once while it stays as it is."""
    try:
        area = _converter.structure(tomllib.loads(text), Area)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{name}: not TOML: {error}") from error
    except BaseValidationError as error:
        raise SpecError(
            f"{name}: {'; '.join(transform_error(error, format_exception=_explain))}"
        ) from error
    for clause in area.clause:
        if not ID.fullmatch(clause.id):
            raise SpecError(f"{name}: {clause.id!r} is not an id like area.topic.detail")
        if f"{clause.area}.toml" != name:
            raise SpecError(f"{name}: {clause.id!r} belongs in {clause.area}.toml")
    return [attrs.evolve(clause, needs=clause.needs | area.needs) for clause in area.clause]
