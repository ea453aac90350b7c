"""max_tokens and max_completion_tokens, on both endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.tables import each, on_each
from caldrix_conformance.target import ABSENT, Target

FIELDS = ("max_tokens", "max_completion_tokens")
PROMPT = "The days of the week are Monday,"
BELOW_ONE = (0, -1, -(2**63))
NO_INTEGERS = (1.5, "8", "", True, [8], {"most": 8})
BEYOND_ANY_CONTEXT = (10**9, 2**63)
SOON = [" ", "\n", "a", "e"]
"""Stop strings, one of which any text comes to within a few tokens."""


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("endpoint", "value"),
    [
        *(row for value in BELOW_ONE for row in each("max-tokens.least", value)),
        *(row for value in NO_INTEGERS for row in each("max-tokens.type", value)),
    ],
)
def test_refused(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.ask(endpoint, **{"max_tokens": ABSENT, field: value}).expect_refusal(field)


def expect_cap(target: Target, endpoint: Endpoint, cap: int, **fields: Any) -> None:
    answer = target.complete(endpoint, **endpoint.prompt(PROMPT), **fields)
    tokens = answer.usage.completion_tokens
    assert tokens == cap, f"completion_tokens is {tokens} for a cap of {cap}"
    assert answer.finish_reason == "length", f"finish_reason is {answer.finish_reason!r}"


@on_each("max-tokens.caps")
def test_cap(target: Target, endpoint: Endpoint) -> None:
    expect_cap(target, endpoint, 2, max_tokens=2)


@on_each("max-tokens.other-name")
def test_other_name(target: Target, endpoint: Endpoint) -> None:
    expect_cap(target, endpoint, 2, max_tokens=ABSENT, max_completion_tokens=2)


@on_each("max-tokens.one")
def test_one(target: Target, endpoint: Endpoint) -> None:
    expect_cap(target, endpoint, 1, max_tokens=1)


@on_each("max-tokens.agreement")
def test_agreement(target: Target, endpoint: Endpoint) -> None:
    expect_cap(target, endpoint, 2, max_tokens=2, max_completion_tokens=2)


@on_each("max-tokens.null")
@pytest.mark.parametrize("given", FIELDS)
def test_null(target: Target, endpoint: Endpoint, given: str) -> None:
    """Null under one name leaves the other in force."""
    caps: dict[str, object] = {**dict.fromkeys(FIELDS), given: 2}
    expect_cap(target, endpoint, 2, **caps)


@on_each("max-tokens.beyond-context")
@pytest.mark.parametrize("cap", BEYOND_ANY_CONTEXT)
def test_beyond_context(target: Target, endpoint: Endpoint, cap: int) -> None:
    answer = target.complete(endpoint, **endpoint.prompt(PROMPT), max_tokens=cap, stop=SOON)
    assert answer.finish_reason == "stop", f"finish_reason is {answer.finish_reason!r}"


@on_each("max-tokens.contradiction")
def test_contradiction(target: Target, endpoint: Endpoint) -> None:
    target.ask(endpoint, max_tokens=2, max_completion_tokens=3).expect(400)


@on_each("max-tokens.absent")
@pytest.mark.parametrize("cap", [ABSENT, None])
def test_no_hidden_cap(target: Target, endpoint: Endpoint, cap: object) -> None:
    """OpenAI's own default for completions is 16 tokens, and some servers have one of their own."""
    wanted, pieces, reason = 24, 0, None
    prompt = endpoint.prompt("Tell me a very long story, with many details.")
    with target.open_stream(endpoint, **prompt, max_tokens=cap) as response:
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if not line.startswith("data: ") or data == "[DONE]":
                continue
            reason = finish_reason(data) or reason
            pieces += 1
            if pieces > wanted:
                return
    assert reason == "stop", f"the answer ended after {pieces} chunks with {reason!r}"


def finish_reason(data: str) -> object:
    """The finish_reason that an event's data gives, None for none."""
    try:
        choices = json.loads(data)["choices"]
        return choices[0]["finish_reason"] if choices else None
    except (ValueError, LookupError, TypeError):
        raise AssertionError(f"no chunk: {data!r}") from None
