"""What a difference of specs says, and when it fails."""

from __future__ import annotations

import attrs

from caldrix_conformance.clauses import Clause, Level, Spec
from caldrix_conformance.spec_diff import compare, main

KEPT = Clause(id="a.kept", level=Level.MUST, promise="It stays.", where="A")
OLD = Clause(id="a.turned", level=Level.MUST, promise="It is so.", where="A")
NEW = attrs.evolve(OLD, promise="It is otherwise.")
GONE = Clause(id="a.gone", level=Level.MAY, promise="It was.", where="A")
ADDED = Clause(id="a.added", level=Level.SHOULD, promise="It will be.", where="A")


def spec(*clauses: Clause) -> Spec:
    return Spec("a", {clause.id: clause for clause in clauses})


def test_each_fate_is_told() -> None:
    diff = compare(spec(KEPT, OLD, GONE), spec(KEPT, NEW, ADDED), {"a.turned": ["test_a.py"]})
    assert diff.unchecked == []
    assert diff.markdown() == (
        "## Added\n- `a.added` (should): It will be.\n"
        "## Removed\n- `a.gone` (may): It was.\n"
        "## Changed\n- `a.turned`\n  - was (must): It is so.\n  - is (must): It is otherwise.\n"
        "  - cases changed: test_a.py"
    )


def test_a_promise_that_changed_alone_is_pointed_out() -> None:
    diff = compare(spec(OLD), spec(NEW), {})
    assert diff.unchecked == ["a.turned"]
    assert "**none**" in diff.markdown()


def test_other_words_around_a_promise_need_no_case() -> None:
    diff = compare(spec(OLD), spec(attrs.evolve(OLD, where="B")), {})
    assert (len(diff.changed), diff.unchecked) == (1, [])


def test_a_revision_that_is_not_there_is_named() -> None:
    assert main(["no-such-revision"]) == 2
