"""The command: the difference between a revision and the working tree, as markdown or as JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from attrs import asdict

from caldrix_conformance.clauses import load_spec
from caldrix_conformance.errors import SuiteError
from caldrix_conformance.spec_diff.cases import PACKAGES, cases_of_two, goldens_at
from caldrix_conformance.spec_diff.changes import Change, Promise, SpecDiff, compare, read_promises
from caldrix_conformance.spec_diff.markdown import markdown
from caldrix_conformance.spec_diff.revisions import Checkout

NO_REVISION = (
    "spec-diff: nothing to compare with: HEAD has no parent here, and hasn't left origin/main"
)


def diff_since(checkout: Checkout, commit: str, contract: str) -> SpecDiff:
    """The difference between ``commit`` and the working tree. Raises SuiteError."""
    spec = f"spec/{contract}"
    if not (checkout.root / spec).is_dir():
        raise SuiteError(f"the checkout at {checkout.root} has no {spec}")
    new = [Promise.of(clause) for clause in load_spec(checkout.root / spec)]
    with tempfile.TemporaryDirectory() as temporary:
        then = Path(temporary)
        checkout.extract(commit, [spec, PACKAGES, f"goldens/{contract}"], then)
        return compare(
            read_promises(then / spec),
            new,
            cases_of_two(then, checkout.root, contract),
            (goldens_at(then, contract), goldens_at(checkout.root, contract)),
        )


def spec_diff(revision: str | None, *, contract: str, as_json: bool) -> int:
    """Print the difference of the checkout around the current folder; return the exit status.

    Raises SuiteError if there is no checkout, revision or spec, or no git.
    """
    checkout = Checkout.around(Path.cwd())
    commit = checkout.base() if revision is None else checkout.commit(revision)
    if commit is None:
        print(NO_REVISION, file=sys.stderr)
        return 0
    diff = diff_since(checkout, commit, contract)
    since = checkout.short(commit)
    print(_json(diff, contract, since) if as_json else markdown(diff, contract, since), end="")
    return 1 if diff.unchecked else 0


def _json(diff: SpecDiff, contract: str, since: str) -> str:
    value = {
        "contract": contract,
        "since": since,
        "changes": [_change(change) for change in diff.changes],
        "stray_goldens": diff.stray_goldens,
        "unchecked": [change.id for change in diff.unchecked],
        "compared_by_source": diff.coarse,
    }
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _change(change: Change) -> dict[str, Any]:
    return {
        "id": change.id,
        "old": _promise(change.old),
        "new": _promise(change.new),
        "changed": [*change.terms, *change.wording],
        "cases": {name: move.value for name, move in change.cases.items()},
        "goldens": list(change.goldens),
    }


def _promise(promise: Promise | None) -> dict[str, Any] | None:
    return None if promise is None else {**asdict(promise), "needs": sorted(promise.needs)}
