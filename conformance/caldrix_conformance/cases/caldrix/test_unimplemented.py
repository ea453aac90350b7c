"""Fields that are not implemented: taken where they change nothing, refused by name elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import Target

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

NEUTRAL: dict[str, list[Any]] = {
    "n": [1],
    "presence_penalty": [0],
    "frequency_penalty": [0],
    "top_logprobs": [0],
    "best_of": [1],
    "logprobs": [False, 0],
    "logit_bias": [{}],
    "tools": [[]],
    "tool_choice": ["none"],
    "response_format": [{"type": "text"}],
}
REFUSED: dict[str, list[Any]] = {
    "n": [2, 0, -1, 1.5, True, "1", [1]],
    "presence_penalty": [0.5, -1, False, "0"],
    "frequency_penalty": [0.5, -1, False, "0"],
    "top_logprobs": [3, -1, False, "0"],
    "best_of": [2, 0, True, "1"],
    "logprobs": [True, 1, 5, "false", []],
    "logit_bias": [{"50": -100}, [], ""],
    "tools": [[TOOL], {}, "none"],
    "tool_choice": ["auto", "required", "", {"type": "function", "function": {"name": "f"}}],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}},
        {"type": "text", "strict": True},
        {},
        "text",
    ],
}


def rows(table: dict[str, list[Any]], what: str) -> list[Any]:
    return [
        row(f"unimplemented.{field.replace('_', '-')}.{what}", field, value)
        for field, values in table.items()
        for value in values
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    rows({field: [None, *values] for field, values in NEUTRAL.items()}, "neutral"),
)
@both_endpoints
def test_neutral(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.complete(endpoint, **endpoint.prompt("Hi"), **{field: value})


@pytest.mark.parametrize(("field", "value"), rows(REFUSED, "refused"))
@both_endpoints
def test_refused(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.ask(endpoint, **{field: value}).expect_refusal(field, within=True)
