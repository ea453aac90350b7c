"""What became of each clause and each golden between two states of a contract.

A clause's promise has changed when its words, its level, what it needs, its source, or whether it
can be tested did: a typing error put right is a change, too, as no rule could tell it from one of
meaning. Such a clause wants a case or a golden that moved with it, else nobody has checked it
again; and a new clause wants a case at all. Where in the document it stands may change freely.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from attrs import frozen

from caldrix_conformance.clauses import Clause
from caldrix_conformance.errors import SpecError
from caldrix_conformance.spec_diff.cases import Case, CasesOfTwo


@frozen(kw_only=True)
class Promise:
    """A clause as texts: a revision may use words that aren't a clause's any more."""

    id: str
    level: str
    promise: str
    where: str
    needs: frozenset[str] = frozenset()
    source: str = "document"
    untestable: str | None = None

    @classmethod
    def of(cls, clause: Clause) -> Promise:
        """The texts of a clause of today."""
        return cls(
            id=clause.id,
            level=clause.level.value,
            promise=clause.promise,
            where=clause.where,
            needs=frozenset(need.value for need in clause.needs),
            source=clause.source.value,
            untestable=clause.untestable,
        )

    @property
    def terms(self) -> Mapping[str, str]:
        """What makes the promise, by the name of its part."""
        return {
            "promise": self.promise,
            "level": self.level,
            "needs": ", ".join(sorted(self.needs)) or "nothing",
            "source": self.source,
            "testable": "no" if self.untestable is not None else "yes",
        }

    @property
    def wording(self) -> Mapping[str, str]:
        """What may change without a check."""
        return {"where": self.where, "untestable": self.untestable or ""}


class Move(Enum):
    """How a case moved."""

    NEW = "new"
    REMOVED = "removed"
    CHANGED = "changed"
    ROWS = "other rows"
    """The function is the same, the values it is given for the clause aren't."""
    DECLARED = "judges it now"
    """The case was there, and didn't declare the clause."""
    UNDECLARED = "judges it no longer"


@frozen
class Change:
    """A clause that was added, removed or changed, with what moved for it."""

    old: Promise | None
    new: Promise | None
    cases: Mapping[str, Move]
    """By the file and function of a case."""
    goldens: Sequence[str]
    """By name, as in area/case."""

    @property
    def id(self) -> str:
        """The clause's id, which never changes."""
        return self._either.id

    @property
    def terms(self) -> Sequence[str]:
        """The parts of the promise that changed."""
        if self.old is None or self.new is None:
            return []
        return _differing(self.old.terms, self.new.terms)

    @property
    def wording(self) -> Sequence[str]:
        """The parts around the promise that changed."""
        if self.old is None or self.new is None:
            return []
        return _differing(self.old.wording, self.new.wording)

    @property
    def is_unchecked(self) -> bool:
        """Whether the promise is new or another, and nothing that checks it moved."""
        if self.cases or self.goldens or self.new is None:
            return False
        if self.new.untestable is not None and (
            self.old is None or self.old.untestable is not None
        ):
            return False
        return self.old is None or bool(self.terms)

    @property
    def _either(self) -> Promise:
        promise = self.new or self.old
        assert promise is not None
        return promise


@frozen
class SpecDiff:
    """All that changed, in the order of the clause files."""

    changes: Sequence[Change]
    stray_goldens: Mapping[str, Sequence[str]]
    """Goldens that moved though no clause of theirs did, each with the clauses it belongs to."""
    coarse: str | None = None
    """Why cases were compared by their source alone, if so."""

    @property
    def added(self) -> Sequence[Change]:
        """Clauses that weren't there."""
        return [change for change in self.changes if change.old is None]

    @property
    def removed(self) -> Sequence[Change]:
        """Clauses that aren't there any more."""
        return [change for change in self.changes if change.new is None]

    @property
    def changed(self) -> Sequence[Change]:
        """Clauses that promise something else."""
        return [change for change in self.changes if change.terms]

    @property
    def reworded(self) -> Sequence[Change]:
        """Clauses that promise the same, with something else around that."""
        return [change for change in self.changes if change.wording and not change.terms]

    @property
    def unchecked(self) -> Sequence[Change]:
        """Clauses whose promise nothing has checked anew."""
        return [change for change in self.changes if change.is_unchecked]


def compare(
    old: Iterable[Promise],
    new: Iterable[Promise],
    cases: CasesOfTwo,
    goldens: tuple[Mapping[str, str | bytes], Mapping[str, str | bytes]],
) -> SpecDiff:
    """The difference of two states; those of clauses, cases and goldens each come old and new."""
    then, now = ({promise.id: promise for promise in promises} for promises in (old, new))
    moved = _differing(*goldens)
    everyone = [*cases.old, *cases.new]
    users = {name: [case for case in everyone if case.uses(name)] for name in moved}
    changes = [
        Change(
            then.get(clause_id),
            now.get(clause_id),
            moves(cases, clause_id),
            [name for name in moved if any(case.declares(clause_id) for case in users[name])],
        )
        for clause_id in [*now, *(gone for gone in then if gone not in now)]
        if then.get(clause_id) != now.get(clause_id)
    ]
    with_clauses = {name for change in changes for name in change.goldens}
    stray = {
        name: [
            clause_id for clause_id in now if any(case.declares(clause_id) for case in users[name])
        ]
        for name in moved
        if name not in with_clauses
    }
    return SpecDiff(changes, stray, cases.coarse)


def moves(cases: CasesOfTwo, clause_id: str) -> Mapping[str, Move]:
    """The cases of a clause that moved.

    A case that reads as one of the old state did hasn't, whatever it and its file are called.
    """
    old, new = ([c for c in side if c.declares(clause_id)] for side in (cases.old, cases.new))
    kept = Counter(c.fingerprint for c in old) & Counter(c.fingerprint for c in new)
    came, went = _without(new, kept), _without(old, kept)
    found = {case.name: _came(case, cases.old, old) for case in came}
    for case in went:
        if case.name not in found:
            found[case.name] = _went(case, cases.new, new)
    return dict(sorted(found.items()))


def _came(case: Case, everyone: Iterable[Case], old: Iterable[Case]) -> Move:
    namesakes = [one for one in old if one.name == case.name]
    if namesakes:
        same = any(one.source == case.source for one in namesakes)
        return Move.ROWS if same else Move.CHANGED
    was_there = any(one.name == case.name for one in everyone)
    return Move.DECLARED if was_there else Move.NEW


def _went(case: Case, everyone: Iterable[Case], new: Iterable[Case]) -> Move:
    if any(one.name == case.name for one in new):
        return Move.ROWS
    is_there = any(one.name == case.name for one in everyone)
    return Move.UNDECLARED if is_there else Move.REMOVED


def _without(cases: Iterable[Case], kept: Counter[tuple[str, str]]) -> Iterator[Case]:
    left = Counter(kept)
    for case in cases:
        if left[case.fingerprint]:
            left[case.fingerprint] -= 1
        else:
            yield case


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Sequence[str]:
    return [name for name in {**new, **old} if old.get(name) != new.get(name)]


def read_promises(directory: Path) -> Sequence[Promise]:
    """The clauses in files of another time, whose keys and words needn't be those of today.

    Raises SpecError if they aren't clause files at all.
    """
    found = []
    for path in sorted(directory.glob("*.toml")):
        try:
            area = tomllib.loads(path.read_text("utf-8"))
            found += [_promise(table, area.get("needs", [])) for table in area["clause"]]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"{path.name}, as it was, is no clause file: {error}") from error
    return found


def _promise(table: Mapping[str, Any], needs: Sequence[str]) -> Promise:
    return Promise(
        id=table["id"],
        level=table["level"],
        promise=table["promise"],
        where=table.get("where", ""),
        needs=frozenset([*needs, *table.get("needs", [])]),
        source=table.get("source", "document"),
        untestable=table.get("untestable"),
    )
