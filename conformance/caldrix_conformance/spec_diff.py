"""What became of the clauses since a revision, as markdown for a review.

Usage: python -m caldrix_conformance.spec_diff [REV] [--contract NAME]

A clause whose promise changed while no file of cases that names it did is a promise that nobody
checked again: it is pointed out, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path

from attrs import frozen

from caldrix_conformance.clauses import Clause, Spec, load_spec
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.resources import CASES, spec_directory

_CHECKOUT = Path(__file__).resolve().parents[2]


@frozen
class SpecDiff:
    """Clauses by what became of them, and the files of cases that changed too."""

    added: Sequence[Clause]
    removed: Sequence[Clause]
    changed: Sequence[tuple[Clause, Clause]]
    """Each as it was and as it is."""
    changed_cases: Mapping[str, Sequence[str]]
    """By clause id, the changed files that name it."""

    @property
    def unchecked(self) -> Sequence[str]:
        """Ids of clauses that promise something else now, with no case changed."""
        return [
            new.id
            for old, new in self.changed
            if old.promise != new.promise and not self.changed_cases.get(new.id)
        ]

    def markdown(self) -> str:
        """The whole, as a review comment."""
        return "\n".join(self._lines()) or "No clause was added, changed or removed."

    def _lines(self) -> Iterator[str]:
        for title, clauses in (("Added", self.added), ("Removed", self.removed)):
            if clauses:
                yield f"## {title}"
                yield from (f"- `{c.id}` ({c.level.value}): {c.promise}" for c in clauses)
        if self.changed:
            yield "## Changed"
        for old, new in self.changed:
            yield f"- `{new.id}`"
            yield f"  - was ({old.level.value}): {old.promise}"
            yield f"  - is ({new.level.value}): {new.promise}"
            files = self.changed_cases.get(new.id)
            yield f"  - cases changed: {', '.join(files) if files else '**none**'}"


def compare(old: Spec, new: Spec, changed_cases: Mapping[str, Sequence[str]]) -> SpecDiff:
    """The difference of two states of a spec."""
    return SpecDiff(
        added=[clause for clause in new if clause.id not in old.clauses],
        removed=[clause for clause in old if clause.id not in new.clauses],
        changed=[
            (old.clauses[clause.id], clause)
            for clause in new
            if clause.id in old.clauses and old.clauses[clause.id] != clause
        ],
        changed_cases=changed_cases,
    )


def spec_at(revision: str, contract: str) -> Spec:
    """The spec as a revision has it; empty where it had none. Raises SuiteError."""
    if not _git("ls-tree", revision, f"spec/{contract}/"):
        return Spec(contract, {})
    archive = _git("archive", revision, f"spec/{contract}")
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(directory, filter="data")
        return load_spec(Path(directory, "spec", contract))


def changed_cases(revision: str, contract: str, spec: Spec) -> Mapping[str, Sequence[str]]:
    """For each clause id, the files of cases that name it and differ from the revision's."""
    folder = CASES / contract
    names = _git("diff", "--name-only", "--relative", revision, "--", str(folder)).decode()
    found: dict[str, list[str]] = {}
    for name in names.splitlines():
        path = _CHECKOUT / name
        text = path.read_text("utf-8") if path.exists() else ""
        for clause in spec:
            if f'"{clause.id}"' in text:
                found.setdefault(clause.id, []).append(name)
    return found


def _git(*arguments: str) -> bytes:
    try:
        result = subprocess.run(["git", *arguments], cwd=_CHECKOUT, check=True, capture_output=True)
    except FileNotFoundError as error:
        raise SuiteError("a difference of specs needs git") from error
    except subprocess.CalledProcessError as error:
        raise SuiteError(f"git {arguments[0]}: {error.stderr.decode().strip()}") from error
    return result.stdout


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the difference; 1 where a promise changed and no case did, 2 where git failed."""
    parser = argparse.ArgumentParser(prog="spec-diff")
    parser.add_argument("revision", nargs="?", default="HEAD")
    parser.add_argument("--contract", default="caldrix")
    options = parser.parse_args(arguments)
    try:
        new = load_spec(spec_directory(options.contract))
        old = spec_at(options.revision, options.contract)
        cases = changed_cases(options.revision, options.contract, new)
    except SuiteError as error:
        print(f"spec-diff: {error}", file=sys.stderr)
        return 2
    diff = compare(old, new, cases)
    print(diff.markdown())
    return 1 if diff.unchecked else 0


if __name__ == "__main__":
    sys.exit(main())
