"""The cases of a contract in two states of the repository, each with what tells if it moved.

Two cases with the same fingerprint check the same: their functions, with all they use, read alike
(sources), and so do the values of their rows (collection). The values are taken from a
collection rather than from the decorators' source, since one table there may serve a hundred
clauses, whose ids may be made by f-strings. Which clauses a case declares comes from it, too.

Each state is collected in a process of its own, with its own suite: the working tree as well as
the files of a revision, which are laid out in a temporary folder. A revision's suite that no longer
runs here is compared by source alone, decorators included: coarser, as a whole table is then one,
but never blind to a change.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path

from attrs import field, frozen
from cattrs import structure

from caldrix_conformance.capture import Tie
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.spec_diff import collection
from caldrix_conformance.spec_diff.sources import Source, SourceTree

PACKAGES = "conformance"
"""The folder of a checkout that Python imports the suite from."""
_CASES = f"{PACKAGES}/caldrix_conformance/cases"
# What a person's shell may set for their own test runs.
_PYTEST_VARIABLES = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


class NotCollected(SuiteError):
    """The cases of a state can't be imported."""


@frozen
class Item:
    """A case as collected, one row of its table."""

    file: str
    function: str
    fixtures: tuple[str, ...]
    clauses: tuple[str, ...]
    values: str
    """A digest of its row's values and its marks."""
    names: tuple[str, ...]
    """Of its module, what functions and classes among the values use."""
    paths: tuple[str, ...]
    """Texts among the values that may name goldens."""


@frozen
class Names:
    """Texts that name things, some of them globs."""

    exact: frozenset[str]
    globs: Sequence[str]

    @classmethod
    def of(cls, texts: frozenset[str]) -> Names:
        """The names in ``texts``. A glob with next to nothing but values in it names nothing."""
        globs = (text for text in texts if "*" in text and re.search(r"\w{3}", text))
        return cls(texts, sorted(globs))

    def __contains__(self, name: str) -> bool:
        return name in self.exact or any(fnmatchcase(name, glob) for glob in self.globs)


@frozen
class Case:
    """A case, one row of its table, in one state of the repository."""

    name: str
    """Its file and function."""
    source: str
    """A digest of its function and all that uses."""
    values: str
    clauses: Names = field(repr=False)
    goldens: Names = field(repr=False)
    """The clauses it declares and the goldens it uses."""

    @property
    def fingerprint(self) -> tuple[str, str]:
        """What another case must have in common with it to check the same."""
        return self.source, self.values

    def declares(self, clause_id: str) -> bool:
        """Whether it judges that clause."""
        return clause_id in self.clauses

    def uses(self, golden: str) -> bool:
        """Whether it holds an answer against that golden."""
        return golden in self.goldens


@frozen
class CasesOfTwo:
    """The cases of both states, and why they were compared by their source alone, if so."""

    old: Sequence[Case]
    new: Sequence[Case]
    coarse: str | None = None


def cases_of_two(old: Path, new: Path, contract: str) -> CasesOfTwo:
    """The cases in two folders that are laid out as the repository is.

    Raises NotCollected if those of the new state can't be imported.
    """
    collected = collect(new, contract)
    try:
        old_cases = cases_at(old, contract)
    except NotCollected as error:
        old_cases, new_cases = (_by_source(root, contract, collected) for root in (old, new))
        return CasesOfTwo(old_cases, new_cases, str(error))
    return CasesOfTwo(old_cases, _by_value(new, contract, collected))


def cases_at(root: Path, contract: str) -> Sequence[Case]:
    """The cases of one state, row by row. Raises NotCollected if they can't be imported."""
    return _by_value(root, contract, collect(root, contract))


def goldens_at(root: Path, contract: str) -> Mapping[str, str | bytes]:
    """What the goldens of a state assert, by their names as in area/case."""
    folder = root / "goldens" / contract
    return {
        path.relative_to(folder).with_suffix("").as_posix(): asserted(path.read_bytes())
        for path in sorted(folder.rglob("*.json"))
    }


def asserted(golden: bytes) -> str | bytes:
    """What a golden's file asserts, in one form of JSON; its bytes if they aren't JSON.

    Not the raw answer, which another capture brings with other ids and times, and of the model's
    name only where the golden is for models of that name. A file of another time may have other
    members, and any of those may be asserted.
    """
    try:
        value = json.loads(golden)
    except ValueError:
        return golden
    if isinstance(value, dict):
        by_name = value.get("tie") == Tie.NAME.value
        left_out = {"origin", "response"} if by_name else {"origin", "response", "model"}
        value = {name: member for name, member in value.items() if name not in left_out}
    return json.dumps(value, sort_keys=True)


def collect(root: Path, contract: str) -> Sequence[Item]:
    """The cases of a state; none where it has no folder for them.

    Raises NotCollected, with the first reason, if any can't be imported.
    """
    folder = root / _CASES / contract
    if not folder.is_dir():
        return []
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary, "cases.json")
        # -P: the folder of the program is the suite of today.
        command = [sys.executable, "-P", str(Path(collection.__file__)), str(folder), str(file)]
        done = subprocess.run(
            command, cwd=temporary, env=_environment(root), capture_output=True, text=True
        )
        result = json.loads(file.read_text("utf-8")) if file.exists() else {"errors": []}
    if result["errors"]:
        raise NotCollected(result["errors"][0])
    if "cases" not in result:
        said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise NotCollected(said[-1])
    return structure(result["cases"], list[Item])


def _environment(root: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _PYTEST_VARIABLES}
    path = [str(root / PACKAGES), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}


def _by_value(root: Path, contract: str, items: Iterable[Item]) -> Sequence[Case]:
    tree = _tree(root, contract)
    sources: dict[tuple[str, ...], Source] = {}
    cases = []
    for item in items:
        others = item.fixtures + item.names
        key = (item.file, item.function, *others)
        if key not in sources:
            sources[key] = tree.source(item.file, item.function, others, decorated=False)
        cases.append(_case(item.file, item.function, sources[key], item.values, [item]))
    return cases


def _by_source(root: Path, contract: str, collected: Iterable[Item]) -> Sequence[Case]:
    """One case a function, which declares the clauses it has today and those that it names."""
    tree = _tree(root, contract)
    cases = []
    for file, function in tree.cases():
        items = [item for item in collected if (item.file, item.function) == (file, function)]
        others = [name for item in items for name in item.fixtures + item.names]
        source = tree.source(file, function, others, decorated=True)
        cases.append(_case(file, function, source, "", items, source.texts))
    return cases


def _case(
    file: str,
    function: str,
    source: Source,
    values: str,
    items: Sequence[Item],
    named: Iterable[str] = (),
) -> Case:
    return Case(
        name=f"{file}::{function}",
        source=sha256("\n".join(sorted(source.parts)).encode()).hexdigest(),
        values=values,
        clauses=Names.of(frozenset(named).union(*(item.clauses for item in items))),
        goldens=Names.of(source.texts.union(*(item.paths for item in items))),
    )


def _tree(root: Path, contract: str) -> SourceTree:
    return SourceTree(root / _CASES / contract, root / PACKAGES)
