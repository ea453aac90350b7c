"""The rules of jevcompat that differ from the document, read from spec/<contract>/differences."""

from __future__ import annotations

import tomllib
from collections.abc import Set
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attrs import frozen
from cattrs import BaseValidationError, Converter, transform_error

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.clauses import Source, Spec
from caldrix_conformance.errors import SpecError


@frozen(kw_only=True)
class Difference:
    """One rule that the document wants otherwise."""

    rule: str
    """Its id in jevcompat."""
    wants: str
    """What the rule wants, in our own words."""
    quotes: tuple[str, ...]
    """The sentences of the document that want it otherwise, to the letter."""
    clauses: tuple[str, ...]
    """The ids of the clauses that carry those sentences."""
    cases: tuple[str, ...]
    """The names of jevcompat's cases that may show it, where * stands for anything."""

    def explains(self, case: str) -> bool:
        """Whether the rule may be broken in a case of that name."""
        return any(fnmatchcase(case, pattern) for pattern in self.cases)


@frozen(kw_only=True)
class Table:
    """All such rules of one version of the tool."""

    tool: str
    version: str
    difference: tuple[Difference, ...]

    def applying(self, spec: Spec, capabilities: Set[Capability]) -> list[Difference]:
        """The rules whose clauses a server with ``capabilities`` is held to."""
        return [
            one
            for one in self.difference
            if all(spec.clause(name).needs <= capabilities for name in one.clauses)
        ]


_converter = Converter(forbid_extra_keys=True)


@_converter.register_structure_hook
def _text(value: Any, _: type[str]) -> str:
    # cattrs would turn a number into its digits.
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text, got {value!r}")
    return value


def read_table(path: Path, spec: Spec) -> Table:
    """The table at ``path``, whose clauses are those of ``spec``.

    Raises SpecError, naming the file, where it is malformed, a rule is there twice or lacks a
    sentence, a clause or a case, or a clause is not there or not the document's.
    """
    try:
        table = _converter.structure(tomllib.loads(path.read_text("utf-8")), Table)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path.name}: not TOML: {error}") from error
    except BaseValidationError as error:
        raise SpecError(f"{path.name}: {'; '.join(transform_error(error))}") from error
    rules = [one.rule for one in table.difference]
    for one in table.difference:
        if rules.count(one.rule) > 1:
            raise SpecError(f"{path.name}: the rule {one.rule!r} is there twice")
        if not (one.quotes and one.clauses and one.cases):
            raise SpecError(f"{path.name}: {one.rule!r} needs a quoted sentence, a clause, a case")
        for name in one.clauses:
            if spec.clause(name).source is not Source.DOCUMENT:
                raise SpecError(f"{path.name}: {one.rule!r} rests on {name!r}, our own choice")
    return table
