"""A difference of specs as a comment for a review: markdown that no clause's words can break."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher

from caldrix_conformance.spec_diff.changes import Change, Promise, SpecDiff

_ALIKE = 0.4
"""Texts with less in common than this share of their words are shown whole."""
_SPECIAL = re.compile(r"[\\`*\[\]<>~|&$#]|(?<![^\W_])_|_(?![^\W_])")


def markdown(diff: SpecDiff, contract: str, since: str) -> str:
    """The whole, a summary first, each kind of change in a section."""
    lines = [_summary(diff, contract, since)]
    if diff.coarse is not None:
        lines += [
            "",
            f"The cases as of {code(since)} don't run here, so whole functions with their tables "
            f"were compared: {escape(diff.coarse)}",
        ]
    sections = (
        ("Not checked anew", diff.unchecked),
        ("Changed", [change for change in diff.changed if not change.is_unchecked]),
        ("Added", [change for change in diff.added if not change.is_unchecked]),
        ("Removed", diff.removed),
        ("Other words around the same promise", diff.reworded),
    )
    for title, changes in sections:
        if changes:
            lines += ["", f"## {title}", ""]
            lines += (line for change in changes for line in _change(change))
    if diff.stray_goldens:
        lines += ["", "## Goldens that moved though no clause did", ""]
        lines += _stray_goldens(diff)
    return "\n".join(lines) + "\n"


def _summary(diff: SpecDiff, contract: str, since: str) -> str:
    start = f"Clauses of {code(contract)} since {code(since)}"
    counts = (
        (len(diff.added), "added"),
        (len(diff.changed), "changed"),
        (len(diff.removed), "removed"),
        (len(diff.reworded), "reworded around their promise"),
    )
    told = ", ".join(f"{count} {what}" for count, what in counts if count)
    summary = f"{start}: {told or 'none added, changed or removed'}."
    unchecked = len(diff.unchecked)
    if unchecked:
        summary += f" **{unchecked} without a case or golden that moved.**"
    return summary


def _change(change: Change) -> Iterator[str]:
    match change:
        case Change(old=Promise() as old, new=Promise() as new):
            yield f"- {code(change.id)}"
            for part in change.terms:
                yield from _was_and_is(part, old.terms[part], new.terms[part])
            for part in change.wording:
                yield from _was_and_is(part, old.wording[part], new.wording[part])
        case Change(old=Promise() as promise) | Change(new=Promise() as promise):
            yield f"- {code(change.id)} ({escape(promise.level)}): {escape(promise.promise)}"
            if promise.untestable is not None:
                yield f"  - untestable: {escape(promise.untestable)}"
    yield from _moves(change)


def _was_and_is(part: str, old: str, new: str) -> Iterator[str]:
    was, now = words(old, new)
    yield f"  - {part} was: {was or '(nothing)'}"
    yield f"  - {part} is: {now or '(nothing)'}"


def _moves(change: Change) -> Iterator[str]:
    cases = [f"{code(name)} ({move.value})" for name, move in change.cases.items()]
    if cases or change.terms or change.is_unchecked:
        none = "none" if change.old is None else "none moved"
        yield f"  - cases: {', '.join(cases) or none}"
    if change.goldens:
        yield f"  - goldens: {_codes(change.goldens)}"


def _stray_goldens(diff: SpecDiff) -> Iterator[str]:
    for name, clauses in diff.stray_goldens.items():
        yield f"- {code(name)}, of {_codes(clauses) if clauses else 'no clause'}"


def words(old: str, new: str) -> tuple[str, str]:
    """Both texts in markdown, with the words struck out of the one and set bold in the other.

    >>> words("It is so.", "It is not so.")
    ('It is so.', 'It is **not** so.')
    """
    ours, theirs = old.split(), new.split()
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return escape(old), escape(new)
    was: list[str] = []
    now: list[str] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        mark = kind != "equal"
        was += _marked(ours[i:j], "~~" if mark else "")
        now += _marked(theirs[k:m], "**" if mark else "")
    return " ".join(was), " ".join(now)


def _marked(run: Sequence[str], mark: str) -> Iterable[str]:
    return [f"{mark}{escape(' '.join(run))}{mark}"] if run else []


def escape(text: str) -> str:
    """``text`` in one line, as markdown that shows it as it is."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(text.split()))


def code(text: str) -> str:
    """``text`` as markdown's code, whatever backquotes it has."""
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(code, texts))
