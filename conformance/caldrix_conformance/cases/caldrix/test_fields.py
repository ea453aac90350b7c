"""Fields that both endpoints take and that change nothing but what an answer tells."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import Target


@checks("fields.token-ids.default")
@both_endpoints
@pytest.mark.parametrize("fields", [{}, {"return_token_ids": False}], ids=["absent", "false"])
def test_no_ids(target: Target, endpoint: Endpoint, fields: dict[str, bool]) -> None:
    body = target.complete(endpoint, **fields).body
    assert "token_ids" not in body["choices"][0], f"token_ids unasked: {body}"


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
    for chunk in target.stream(endpoint, max_tokens=3, return_token_ids=True).chunks:
        assert "token_ids" in chunk, f"no token_ids on the chunk: {chunk}"
        assert "token_ids" not in chunk["choices"][0], f"token_ids on the choice: {chunk}"


@checks("fields.token-ids.type")
@both_endpoints
@pytest.mark.parametrize("value", ["true", 1, []])
def test_ids_type(target: Target, endpoint: Endpoint, value: object) -> None:
    target.ask(endpoint, return_token_ids=value).expect_refusal("return_token_ids")


@checks("fields.user")
@both_endpoints
def test_user(target: Target, endpoint: Endpoint) -> None:
    target.complete(endpoint, user="someone")


UNNAMED = {
    "x_no_such_field": {"deep": [1, None, "x"]},
    "store": True,
    "metadata": {"a": "b"},
    "service_tier": "auto",
}


OTHER_APIS = {
    "echo": True,
    "suffix": " And so on.",
    "functions": [{"name": "look_up", "parameters": {}}],
    "function_call": "auto",
    "modalities": ["text", "audio"],
}


@pytest.mark.parametrize(
    "fields", [row("fields.unnamed", UNNAMED), row("fields.other-apis", OTHER_APIS)]
)
@both_endpoints
def test_unnamed(target: Target, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    plain, seen = (target.complete(endpoint, max_tokens=4, **more) for more in ({}, fields))
    assert seen.text == plain.text, f"{seen.text!r} with unnamed fields, {plain.text!r} without"
