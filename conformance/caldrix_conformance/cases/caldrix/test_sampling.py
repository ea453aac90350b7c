"""Sampling fields: which values each takes and refuses, and what absence means."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from caldrix_conformance.endpoints import ENDPOINTS, Endpoint
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.prompts import AS_GOOD, NEUTRAL
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target

PROMPT = "Once upon a time"
HOT = 2.0

TAKEN: dict[str, list[Any]] = {
    "temperature": [0, -0.0, 0.5, 2, 100, 1e308, 1e-320],
    "top_k": [0, -1, 1, 50, 10_000_000, 2**63],
    "top_p": [1, 1.0, 0.5, 1e-9, 1e-320],
    "min_p": [0, -0.0, 1e-320, 0.5, 1],
    "repetition_penalty": [1, 1.3, 0.5, 1e-300, 1e308],
    "seed": [-1, 0, 7, 2**32, 2**63, 2**64, 10**30],
}
REFUSED: dict[str, list[Any]] = {
    "temperature": [-0.1, -1e-320, "1", "", True, [1], {}],
    "top_k": [-2, 1.5, "40", True, [1]],
    "top_p": [0, -0.0, -0.5, 1.01, 2, 1e308, "1", True, [1]],
    "min_p": [-0.1, -1e-320, 1.01, "0", False, [0]],
    "repetition_penalty": [0, -0.0, -1, "1", True, [1]],
    "seed": [-2, -(2**63), 1.5, "7", True, [7]],
}
OVERFLOWING: dict[str, list[str]] = {
    "temperature": ["1e999", "-1e999"],
    "top_p": ["1e999"],
    "min_p": ["-1e999"],
    "repetition_penalty": ["1e999"],
}
"""JSON, but no finite 64-bit floats."""


def clause(field: str, what: str) -> str:
    return f"sampling.{field.replace('_', '-')}.{what}"


@pytest.mark.parametrize(
    ("field", "value"),
    [row(clause(f, "takes"), f, value) for f, values in TAKEN.items() for value in values],
)
@both_endpoints
def test_taken(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.complete(endpoint, **endpoint.prompt("Hi"), **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [row(clause(f, "refuses"), f, value) for f, values in REFUSED.items() for value in values],
)
@both_endpoints
def test_refused(target: Target, endpoint: Endpoint, field: str, value: object) -> None:
    target.ask(endpoint, **{field: value}).expect_refusal(field)


@pytest.mark.parametrize(
    ("field", "spelling"),
    [row(clause(f, "refuses"), f, text) for f, texts in OVERFLOWING.items() for text in texts],
)
@both_endpoints
def test_overflowing(target: Target, endpoint: Endpoint, field: str, spelling: str) -> None:
    body = json.dumps(target.body(endpoint, {field: "NUMBER"})).replace('"NUMBER"', spelling)
    headers = {"Content-Type": "application/json"}
    answer = target.send("POST", endpoint.path, content=body.encode(), headers=headers)
    answer.expect_refusal(field)


@checks("sampling.top-p.printed")
@captured("sampling/document-top-p")
def test_printed(golden: Golden) -> None:
    golden.replay()


Ask = Callable[..., str]


@pytest.fixture
def text(target: Target, endpoint: Endpoint) -> Ask:
    """Asks the case's endpoint for a short text."""

    return partial(short_text, target, endpoint)


def short_text(target: Target, endpoint: Endpoint, **fields: Any) -> str:
    fields = {**endpoint.prompt(PROMPT), "max_tokens": 8, **fields}
    return target.complete(endpoint, **fields).text


OWN_DEFAULTS = "the server has sampling defaults of its own"
"""Which its flags may give it; that they are the same on both endpoints can still be judged."""


@pytest.fixture(scope="session")
def unasked(target: Target) -> dict[str, tuple[str, set[str]]]:
    """Of each endpoint the greedy text, and what comes without sampling fields."""
    able = [one for one in ENDPOINTS if one.capability in target.capabilities]
    return {
        endpoint.name: (
            short_text(target, endpoint, temperature=0),
            {short_text(target, endpoint, temperature=ABSENT) for _ in range(3)},
        )
        for endpoint in able
    }


@checks("sampling.default.greedy")
@both_endpoints
def test_default(unasked: dict[str, tuple[str, set[str]]], endpoint: Endpoint) -> None:
    if all(seen != {greedy} for greedy, seen in unasked.values()):
        pytest.skip(OWN_DEFAULTS)
    greedy, seen = unasked[endpoint.name]
    assert seen == {greedy}, f"{sorted(seen)} without fields, the greedy text is {greedy!r}"


@checks("sampling.default.values")
@both_endpoints
def test_values(text: Ask) -> None:
    drawn = {"temperature": HOT, "seed": 7}
    seen, as_good, again = (text(**drawn, **fields) for fields in (NEUTRAL, AS_GOOD, AS_GOOD))
    assert seen == as_good, f"{seen!r} with {NEUTRAL}, {as_good!r} with {AS_GOOD}"
    if text(**drawn) != again:
        pytest.skip(OWN_DEFAULTS)


@checks("sampling.default.null")
@both_endpoints
def test_null(text: Ask) -> None:
    # A server may have been started with defaults of its own: what counts is that null is absent.
    absent = text(temperature=ABSENT, seed=3)
    nulls = dict.fromkeys(TAKEN, None) | {"seed": 3}
    seen = text(**nulls)
    assert seen == absent, f"{seen!r} with nulls, {absent!r} without the fields"
