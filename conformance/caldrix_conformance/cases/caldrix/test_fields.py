"""Fields that both endpoints take and that change nothing but what an answer tells."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target


@pytest.mark.parametrize(
    "fields",
    [
        row("fields.token-ids.default", {}),
        row("fields.token-ids.default", {"return_token_ids": False}),
        row("fields.token-ids.null", {"return_token_ids": None}),
    ],
)
@both_endpoints
def test_no_ids(target: Target, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    body = target.complete(endpoint, **fields).body
    assert "token_ids" not in body["choices"][0], f"token_ids unasked: {body}"


@checks("fields.token-ids.unasked-chunks")
@both_endpoints
def test_no_streamed_ids(target: Target, endpoint: Endpoint) -> None:
    body = target.stream(endpoint, max_tokens=2).answer.expect(200).body
    assert b'"token_ids"' not in body, f"token_ids unasked: {body!r}"


@checks("fields.token-ids.whole")
@both_endpoints
def test_ids(target: Target, endpoint: Endpoint) -> None:
    answer = target.complete(endpoint, max_tokens=3, return_token_ids=True)
    assert answer.token_ids is not None, f"no token_ids: {answer.body}"
    tokens = answer.usage.completion_tokens
    assert len(answer.token_ids) == tokens, f"{answer.token_ids} for {tokens} tokens"


@checks("fields.token-ids.streamed")
@both_endpoints
def test_streamed_ids(target: Target, endpoint: Endpoint) -> None:
    seen = target.stream(endpoint, max_tokens=6, return_token_ids=True).token_ids
    wanted = target.complete(endpoint, max_tokens=6, return_token_ids=True).token_ids
    assert seen == wanted, f"{seen} streamed, {wanted} not streamed"


@checks("fields.token-ids.place")
@both_endpoints
def test_place_of_ids(target: Target, endpoint: Endpoint) -> None:
    stream = target.stream(endpoint, max_tokens=3, return_token_ids=True)
    for chunk in stream.chunks:
        assert "token_ids" in chunk, f"no token_ids on the chunk: {chunk}"
    for choice in stream.choices:
        assert "token_ids" not in choice, f"token_ids on the choice: {choice}"


@checks("fields.token-ids.same-text")
@both_endpoints
def test_text_with_ids(target: Target, endpoint: Endpoint) -> None:
    plain, seen = (
        target.complete(endpoint, max_tokens=4, return_token_ids=wanted).text
        for wanted in (ABSENT, True)
    )
    assert seen == plain, f"{seen!r} with token_ids, {plain!r} without"


@checks("fields.token-ids.type")
@both_endpoints
@pytest.mark.parametrize("value", ["true", 1, 0, []])
def test_ids_type(target: Target, endpoint: Endpoint, value: object) -> None:
    target.ask(endpoint, return_token_ids=value).expect_refusal("return_token_ids")


UNNAMED = {
    "x_no_such_field": {"deep": [1, None, "x", {"model": 1}]},
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "": 0,
}
OTHER_APIS = {
    "echo": True,
    "suffix": " And so on.",
    "functions": [{"name": "look_up", "parameters": {}}],
    "function_call": "auto",
    "parallel_tool_calls": True,
    "modalities": ["text", "audio"],
}


@pytest.mark.parametrize(
    "fields",
    [
        row("fields.user", {"user": "someone"}),
        row("fields.user", {"user": None}),
        row("fields.unnamed", UNNAMED),
        row("fields.other-apis", OTHER_APIS),
    ],
)
@both_endpoints
def test_changes_nothing(target: Target, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    prompt = endpoint.prompt("One, two, three,")
    plain, seen = (
        target.complete(endpoint, **prompt, max_tokens=4, **more).text for more in ({}, fields)
    )
    assert plain, "an empty text shows nothing"
    assert seen == plain, f"{seen!r} with {', '.join(sorted(fields))}; {plain!r} without"


INTEGERS = ("max_tokens", "max_completion_tokens", "top_k", "seed")


@checks("fields.integers")
@both_endpoints
@pytest.mark.parametrize("field", INTEGERS)
def test_written_with_a_fraction(target: Target, endpoint: Endpoint, field: str) -> None:
    """7.0, which in JSON is the number 7 and in most languages no integer."""
    target.ask(endpoint, **{"max_tokens": ABSENT, field: 7.0}).expect_refusal(field)
