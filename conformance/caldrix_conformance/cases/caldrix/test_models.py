"""The list of models, and health."""

from __future__ import annotations

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.shapes import MODEL_LIST, expect_shape
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target


@checks("models.shape")
def test_shape(target: Target) -> None:
    listed = target.get("/v1/models").expect(200).object
    expect_shape(listed, MODEL_LIST)
    assert listed["object"] == "list", f"object is {listed['object']!r}"
    kinds = [model["object"] for model in listed["data"]]
    assert kinds == ["model"] * len(kinds), f"the models' objects are {kinds}"


@checks("models.exact")
@captured("models/shape-list")
def test_exact_shape(golden: Golden, target: Target) -> None:
    golden.shape(target.get("/v1/models"))


@checks("models.one")
def test_one(target: Target, some_endpoint: Endpoint) -> None:
    listed = target.get("/v1/models").expect(200).object.get("data")
    assert isinstance(listed, list), f"data is {listed!r}"
    names = [model.get("id") for model in listed]
    assert names == [target.model], f"the list holds {names}"
    target.complete(some_endpoint, model=names[0])


@checks("models.printed")
@captured("models/document-list")
def test_printed(golden: Golden) -> None:
    golden.replay()


@pytest.mark.parametrize(
    "path", [row("health.healthz", "/healthz"), row("health.health", "/health")]
)
def test_health(target: Target, path: str) -> None:
    body = target.get(path).expect(200).body
    assert body.strip() == b"ok", f"{path} answers {body[:80]!r}"
