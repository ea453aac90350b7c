"""The name of the model in a request, on both endpoints."""

from __future__ import annotations

import json

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.tables import each, on_each
from caldrix_conformance.target import ABSENT, Target

REFUSED: dict[str, list[object]] = {
    "model.required": [ABSENT, None],
    "model.type": [7, ["a"], {"id": "a"}, True],
    "model.unknown": ["no-such-model", "", "no\0such", "x" * 100_000],
}


@pytest.mark.parametrize(
    ("endpoint", "model"),
    [row for topic, models in REFUSED.items() for model in models for row in each(topic, model)],
)
def test_refused(target: Target, endpoint: Endpoint, model: object) -> None:
    target.ask(endpoint, model=model).expect_refusal("model")


@on_each("model.exact")
def test_nearly_the_name(target: Target, endpoint: Endpoint) -> None:
    for name in (target.model.swapcase(), f"{target.model} ", target.model[:-1]):
        if name != target.model:
            target.ask(endpoint, model=name).expect_refusal("model")


@on_each("model.unknown-names")
def test_names(target: Target, endpoint: Endpoint) -> None:
    message = target.ask(endpoint, model="no-such-model").expect(400).error_message
    for name in ("no-such-model", target.model):
        # As it is, or as a message may quote it: with escapes.
        spellings = (name, *(json.dumps(name, ensure_ascii=a)[1:-1] for a in (True, False)))
        named = any(spelling in message for spelling in spellings)
        assert named, f"the message does not name {name}: {message!r}"
