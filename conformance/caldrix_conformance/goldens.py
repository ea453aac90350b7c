"""Goldens: captured answers, one readable file each, compared by their canonical form.

Syrupy keeps and compares the files; this module says how they look and where they lie. A normal
run never writes one: `just goldens` does, and a person reads the difference.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict, evolve, frozen
from cattrs import BaseValidationError, Converter
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode
from syrupy.location import PyTestLocation

from caldrix_conformance.answers import Answer
from caldrix_conformance.canonical import canonical_answer, canonical_shape, first_difference
from caldrix_conformance.errors import GoldenError, SuiteError
from caldrix_conformance.resources import goldens_directory
from caldrix_conformance.target import Target

HOW_TO_WRITE = "write it with `just goldens`"
ANY_MODEL = "<model>"


class Kind(Enum):
    """What of an answer a golden holds fast."""

    SHAPE = "shape"
    """Key sets, types and the order of events, for any model."""
    TEXT = "text"
    """Every value, for the model that gave the answer, or any model where it has no say in it."""


class Origin(Enum):
    """Where a golden's answer comes from."""

    CAPTURED = "captured"
    DOCUMENT = "document"
    """Printed in the contract's document: never rewritten."""


@frozen(kw_only=True)
class Response:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    body: tuple[str, ...]
    """Its text, cut at line feeds, so that a stream can be read and compared line by line."""


@frozen(kw_only=True)
class Request:
    """A request that `Target.send` can send again."""

    method: str
    path: str
    body: dict[str, Any] | None


@frozen(kw_only=True)
class Capture:
    """What a golden file holds."""

    kind: Kind
    origin: Origin = Origin.CAPTURED
    model: str | None
    """The model that the answer is tied to; None for any."""
    request: Request
    response: Response
    canonical: dict[str, Any]

    @classmethod
    def of(cls, answer: Answer, kind: Kind, *, served: str, tied: bool) -> Capture:
        """A capture of an answer of the model ``served``, tied to that or for any model."""
        assert answer.request is None or isinstance(answer.request, dict)
        request = Request(method=answer.method, path=answer.path, body=answer.request)
        canonical = (canonical_shape if kind is Kind.SHAPE else canonical_answer)(answer)
        if not tied:
            request = evolve(request, body=_replace(request.body, served, ANY_MODEL))
            canonical = _replace(canonical, served, ANY_MODEL)
        response = Response(
            status=answer.status,
            headers={name: answer.headers[name] for name in _KEPT if name in answer.headers},
            body=tuple(answer.body.decode().split("\n")),
        )
        return cls(
            kind=kind,
            model=served if tied else None,
            request=request,
            response=response,
            canonical=canonical,
        )

    @classmethod
    def from_text(cls, text: str, name: str) -> Capture:
        """Read a golden file's text. Raises GoldenError, naming the golden ``name``."""
        try:
            return _converter.structure(json.loads(text), cls)
        except (ValueError, BaseValidationError) as error:
            raise GoldenError(f"the golden {name} can't be read: {error}") from error

    def to_text(self) -> str:
        """A golden file's text."""
        value = _converter.unstructure(self)
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


_KEPT = ("content-type",)
_converter = Converter(forbid_extra_keys=True)


def _replace(value: Any, old: str, new: str) -> Any:
    """``value`` with every string equal to ``old`` replaced."""
    if isinstance(value, dict):
        return {name: _replace(member, old, new) for name, member in value.items()}
    if isinstance(value, list):
        return [_replace(item, old, new) for item in value]
    return new if value == old else value


class GoldenExtension(SingleFileSnapshotExtension):
    """Keeps a capture named ``contract/area/case`` in goldens/contract/area/case.json."""

    _write_mode = WriteMode.TEXT
    file_extension = "json"

    def serialize(self, data: Any, **_: Any) -> str:
        """The file's text of a Capture."""
        assert isinstance(data, Capture)
        return data.to_text()

    @classmethod
    def get_location(cls, *, test_location: PyTestLocation, index: str | int) -> str:
        """The file of the golden that is named ``index``, wherever its case stands."""
        return str(golden_path(str(index)))

    @classmethod
    def matches_test_location(
        cls, *, test_location: PyTestLocation, snapshot_location: str
    ) -> bool:
        """Goldens lie apart from their cases, so that any case may use one."""
        return True

    def matches(self, *, serialized_data: Any, snapshot_data: Any) -> bool:
        """Whether two captures hold the same: the raw answer is kept, not compared."""
        seen, stored = (
            Capture.from_text(text, "being compared") for text in (serialized_data, snapshot_data)
        )
        return (seen.kind, seen.request, seen.canonical) == (
            stored.kind,
            stored.request,
            stored.canonical,
        )


def golden_path(name: str) -> Path:
    """The file of the golden ``contract/area/case``."""
    contract, _, rest = name.partition("/")
    return goldens_directory(contract) / f"{rest}.json"


@frozen
class Goldens:
    """The goldens of a contract, as a case uses them."""

    contract: str
    snapshot: SnapshotAssertion
    target: Target

    def check(self, name: str, answer: Answer, kind: Kind, *, any_model: bool = False) -> None:
        """Hold ``answer`` against the golden ``area/case``, or write that when asked to.

        A text that was captured from another model judges nothing: the case is unsupported.
        """
        tied = kind is Kind.TEXT and not any_model
        stored = self._stored(name)
        if stored is not None:
            self._require_model(stored)
        seen = Capture.of(answer, kind, served=self.target.model, tied=tied)
        full_name = f"{self.contract}/{name}"
        kept = self.snapshot(name=full_name, extension_class=GoldenExtension) == seen
        if kept:
            return
        assert stored is not None, f"there is no golden {full_name}: {HOW_TO_WRITE}"
        raise AssertionError(f"golden {full_name}: {_difference(stored, seen)}")

    def replay(self, name: str) -> None:
        """Send a golden's own request and hold the answer against it; never writes."""
        stored = self._stored(name)
        if stored is None:
            raise SuiteError(f"there is no golden {self.contract}/{name}")
        self._require_model(stored)
        request = stored.request
        body = _replace(request.body, ANY_MODEL, self.target.model)
        if request.method == "GET":
            answer = self.target.get(request.path)
        else:
            answer = self.target.post(request.path, body)
        served, tied = self.target.model, stored.model is not None
        seen = Capture.of(answer, stored.kind, served=served, tied=tied)
        difference = first_difference(stored.canonical, seen.canonical)
        assert difference is None, f"golden {self.contract}/{name}: {difference}"

    def _stored(self, name: str) -> Capture | None:
        path = golden_path(f"{self.contract}/{name}")
        return Capture.from_text(path.read_text("utf-8"), name) if path.is_file() else None

    def _require_model(self, stored: Capture) -> None:
        if stored.model is not None and stored.model != self.target.model:
            pytest.skip(f"captured from {stored.model}")


def _difference(stored: Capture, seen: Capture) -> str:
    for part in ("request", "canonical"):
        one, other = (
            value if isinstance(value, dict) else asdict(value)
            for value in (getattr(stored, part), getattr(seen, part))
        )
        difference = first_difference(one, other)
        if difference is not None:
            return f"{part}: {difference}"
    return "another kind of golden"
