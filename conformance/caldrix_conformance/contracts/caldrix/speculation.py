"""Tokens that are guessed ahead: where there are some to guess, and what a usage says of them."""

from __future__ import annotations

from caldrix_conformance.answers import Completion, JsonObject

MEMBERS = ("proposed", "accepted")

REPETITIVE = "1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2,"
"""What any proposer guesses the continuation of."""


def speculative_in(answer: Completion) -> dict[str, int]:
    """The counts of an answer that must have been guessed ahead."""
    return speculative_counts(answer.body["usage"])


def speculative_counts(usage: JsonObject) -> dict[str, int]:
    """The counts in a usage that must have them."""
    seen = usage.get("speculative")
    assert isinstance(seen, dict), f"speculative is {seen!r} in the usage {usage}"
    counts: dict[str, int] = {}
    for name in MEMBERS:
        count = seen.get(name)
        assert isinstance(count, int), f"{name} is {count!r} in {seen}"
        assert not isinstance(count, bool), f"{name} is {count!r} in {seen}"
        counts[name] = count
    return counts
