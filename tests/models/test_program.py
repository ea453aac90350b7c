"""Programs that no lane could run: what selects the wanted tokens, and what must not follow it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caldrix.models.builder import ProgramBuilder
from caldrix.models.program import KvCache, ProgramError, Value

Build = Callable[[ProgramBuilder, Value], Value]


def attended(b: ProgramBuilder, x: Value) -> Value:
    return b.attend(x, x, x, KvCache(1, 16), heads=1, scale=1.0)


# What a program makes of its embedding before the logits, and what is said of it
MISPLACED: list[tuple[Build, str]] = [
    (lambda b, x: x, "a Program has one Select, not 0"),
    (lambda b, x: b.select(b.select(x)), "a Program has one Select, not 2"),
    (
        lambda b, x: b.add(x, b.select(x)),
        "Add.* reads Value.index=0, width=16., which is of all tokens",
    ),
    (lambda b, x: [b.select(x), x][1], "Logits.* reads Value.index=0, .* which is of all tokens"),
    (lambda b, x: attended(b, b.select(x)), "Attend.* is of all tokens and must come before"),
    (
        lambda b, x: b.rope(b.select(x), heads=1, frequencies=(1.0,)),
        "Rope.* is of all tokens and must come before",
    ),
]


@pytest.mark.parametrize(("build", "said"), MISPLACED, ids=[said for _, said in MISPLACED])
def test_the_wanted_tokens_are_selected_once_and_for_all_that_follows(
    build: Build, said: str
) -> None:
    b = ProgramBuilder("test", vocab_size=8, max_context=8)
    value = build(b, b.embed("embedding", 16))
    with pytest.raises(ProgramError, match=said):
        b.logits(value, "head")
