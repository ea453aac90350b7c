"""max_tokens and max_completion_tokens: the values that are refused, on both endpoints."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

FIELDS = ("max_tokens", "max_completion_tokens")
PROMPT = "The days of the week are Monday,"
BELOW_ONE = (0, -1)
NO_INTEGERS = (1.5, "8", True, [8])


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("endpoint", "value"),
    [
        *(row("chat.max-tokens.least", CHAT, value) for value in BELOW_ONE),
        *(row("chat.max-tokens.type", CHAT, value) for value in NO_INTEGERS),
        *(
            row("completions.max-tokens.as-chat", COMPLETIONS, value)
            for value in (*BELOW_ONE, *NO_INTEGERS)
        ),
    ],
)
def test_refused(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.ask(endpoint, **{"max_tokens": ABSENT, field: value}).expect_refusal(field)


@checks("completions.max-tokens.as-chat")
@pytest.mark.parametrize("field", FIELDS)
def test_cap(target: Target, field: str) -> None:
    answer = target.completions(prompt=PROMPT, **{"max_tokens": ABSENT, field: 2})
    assert answer.usage.completion_tokens <= 2, f"{answer.usage} for a cap of 2"
    assert answer.finish_reason == "length", f"finish_reason is {answer.finish_reason!r}"


@checks("chat.max-tokens.contradiction")
def test_contradiction(target: Target) -> None:
    target.ask(CHAT, max_tokens=2, max_completion_tokens=3).expect(400)
