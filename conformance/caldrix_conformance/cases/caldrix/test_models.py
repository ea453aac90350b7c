"""The list of models, and health."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import COMPLETIONS
from caldrix_conformance.goldens import Goldens, Kind
from caldrix_conformance.marks import checks, row
from caldrix_conformance.target import Target


@checks("models.shape")
def test_shape(golden: Goldens, target: Target) -> None:
    answer = target.get("/v1/models")
    golden.check("models/shape-list", answer, Kind.SHAPE)
    seen = answer.object.get("object")
    assert seen == "list", f"object is {seen!r}"


@checks("models.one")
def test_one(target: Target) -> None:
    listed = target.get("/v1/models").expect(200).object.get("data")
    assert isinstance(listed, list), f"data is {listed!r}"
    names = [model.get("id") for model in listed]
    assert names == [target.model], f"the list holds {names}"
    target.ask(COMPLETIONS, model=names[0]).expect(200)


@checks("models.printed")
def test_printed(golden: Goldens) -> None:
    golden.replay("models/document-list")


@pytest.mark.parametrize(
    "path", [row("health.healthz", "/healthz"), row("health.health", "/health")]
)
def test_health(target: Target, path: str) -> None:
    body = target.get(path).expect(200).body
    assert body.strip() == b"ok", f"{path} answers {body[:80]!r}"
