"""Goldens: captured answers, one readable file each, compared by their canonical form.

Syrupy keeps and compares the files; this module says which of them applies to the target, and where
they lie. A normal run never writes one: `just goldens` does, and a person reads the difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import pytest
from attrs import frozen
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension
from syrupy.location import PyTestLocation

from caldrix_conformance import resources
from caldrix_conformance.answers import Answer
from caldrix_conformance.capture import (
    LEAST_MARGIN,
    AnswerKind,
    Capture,
    Count,
    CountTable,
    Kind,
    StoredGolden,
    Tie,
    golden_text,
    read_golden,
    read_golden_file,
)
from caldrix_conformance.compare import Tolerance
from caldrix_conformance.endpoints import CHAT, Endpoint
from caldrix_conformance.errors import GoldenError, SuiteError
from caldrix_conformance.fingerprint import FINGERPRINTS, Part, Recognizer
from caldrix_conformance.target import Target

HOW_TO_WRITE = "write it with `just goldens`"


class GoldenExtension(SingleFileSnapshotExtension):
    """Keeps the golden named ``contract/area/case`` in goldens/contract/area/case.json."""

    file_extension = "json"

    def serialize(self, data: Any, **_: Any) -> bytes:
        """What the golden's file holds."""
        assert isinstance(data, Capture | CountTable)
        return golden_text(data).encode()

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
        """Whether two goldens hold the same: raw answers are kept, not compared.

        What can't be read is no match, and so is written anew when goldens are.
        """
        try:
            stored = read_golden(snapshot_data.decode(), "being compared")
        except (GoldenError, UnicodeDecodeError):
            return False
        seen = read_golden(serialized_data.decode(), "being compared")
        return difference(stored, seen) is None


def difference(stored: StoredGolden, seen: StoredGolden) -> str | None:
    """Where ``seen`` first differs from a stored golden."""
    if isinstance(stored, Capture) and isinstance(seen, Capture):
        return stored.difference(seen)
    if isinstance(stored, CountTable) and isinstance(seen, CountTable):
        return stored.difference(seen)
    return "another kind of golden"


def golden_path(name: str) -> Path:
    """The file of the golden ``contract/area/case``, or ``contract/area/fingerprint/case``."""
    contract, _, rest = name.partition("/")
    return resources.goldens_directory(contract) / f"{rest}.json"


@frozen
class Golden:
    """The golden ``area/case`` of a contract, for the case that is marked with it."""

    contract: str
    name: str
    snapshot: SnapshotAssertion
    recognizer: Recognizer
    writing: bool

    @property
    def target(self) -> Target:
        """The server that is judged, or that goldens are written from."""
        return self.recognizer.target

    def shape(self, answer: Answer) -> None:
        """Hold the members and types of ``answer`` against the golden, whatever the model."""
        self._hold_any(answer, Kind.SHAPE)

    def arithmetic(self, answer: Answer) -> None:
        """Hold what no model has a say in of ``answer``, which answers questions, against it."""
        self._hold_any(answer, Kind.ARITHMETIC)

    def text(self, ask: Callable[[], Answer], *, tolerance: Tolerance | None = None) -> None:
        """Hold every value of what ``ask`` returns against the golden of the target's model.

        The case is unsupported for a model that no such golden was captured from.
        """
        names = self._applicable(Part.WEIGHTS)
        answer = ask()
        for name in names:
            seen = Capture.of(
                answer,
                Kind.TEXT,
                model=self.target.model,
                tie=Tie.FINGERPRINT,
                tolerance=tolerance,
            )
            self._hold(name, seen)

    def counts(self, endpoint: Endpoint, prompts: Mapping[str, Any]) -> None:
        """Hold the tokens of ``prompts``, texts or messages, against those of their tokenizer.

        The case is unsupported for a tokenizer or a template that no such golden is of.
        """
        names = self._applicable(Part.TEMPLATE if endpoint is CHAT else Part.TOKENIZER)
        counts = {}
        for what, prompt in prompts.items():
            fields = {endpoint.prompt_field: prompt}
            usage = self.target.complete(endpoint, **fields, max_tokens=1).usage
            counts[what] = Count(prompt=prompt, tokens=usage.prompt_tokens)
        seen = CountTable(model=self.target.model, path=endpoint.path, counts=counts)
        for name in names:
            self._hold(name, seen)

    def replay(self) -> None:
        """Send the golden's own request and hold the answer against it; never writes.

        The case is unsupported if the golden is of a model of another name than the target's.
        """
        name = f"{self.contract}/{self.name}"
        path = golden_path(name)
        if not path.is_file():
            raise GoldenError(f"there is no golden {name}")
        stored = read_golden_file(path, name)
        if not isinstance(stored, Capture):
            raise GoldenError(f"the golden {name} holds no answer")
        if stored.tie is Tie.NAME and stored.model != self.target.model:
            pytest.skip(f"{stored.model} gave that answer, and the target's is {self.target.model}")
        request = stored.request.for_model(self.target.model)
        if request.method == "GET":
            answer = self.target.get(request.path)
        else:
            answer = self.target.post(request.path, request.body)
        found = stored.difference(stored.like(answer, model=self.target.model))
        assert found is None, f"golden {name}: {found}"

    def _applicable(self, part: Part) -> Sequence[str]:
        """The full names of the goldens that the target can be held against, at least one.

        When writing, that of the target's own fingerprint.
        """
        area, _, case = self.name.partition("/")
        if self.writing:
            return [f"{self.contract}/{area}/{self.recognizer.own()}/{case}"]
        folder = resources.goldens_directory(self.contract) / area
        models = sorted(path.parent.name for path in folder.glob(f"*/{case}.json"))
        full_name = f"{self.contract}/{self.name}"
        assert models, f"there is no golden {full_name} of any model: {HOW_TO_WRITE}"
        # A folder without a fingerprint is an orphan; only where there is no other does it matter.
        known = [model for model in models if model in self.recognizer.stored] or models
        reasons = {model: self.recognizer.difference(model, part) for model in known}
        fitting = [model for model, reason in reasons.items() if reason is None]
        if not fitting:
            told = "; ".join(f"{model}: {reason}" for model, reason in reasons.items())
            pytest.skip(f"the target isn't a model this was captured from; {told}")
        return [f"{self.contract}/{area}/{model}/{case}" for model in fitting]

    def _hold_any(self, answer: Answer, kind: AnswerKind) -> None:
        """Hold an answer that may be of any model."""
        seen = Capture.of(answer, kind, model=self.target.model, tie=Tie.ANY)
        self._hold(f"{self.contract}/{self.name}", seen)

    def _hold(self, name: str, seen: StoredGolden) -> None:
        path = golden_path(name)
        stored = None
        if path.is_file() and not self.writing:
            stored = read_golden_file(path, name)
        if self.snapshot(name=name, extension_class=GoldenExtension) == seen:
            return
        assert stored is not None, f"there is no golden {name}: {HOW_TO_WRITE}"
        found = difference(stored, seen)
        if isinstance(stored, Capture) and isinstance(seen, Capture) and not stored.asserts_text:
            found = stored.loose_difference(seen)
            if found is None:
                gap = "unknown" if stored.margin is None else f"{stored.margin:g}"
                pytest.skip(
                    f"golden {name}: the text is not asserted, since the gap between its two best "
                    f"tokens is {gap}, and not {LEAST_MARGIN:g} or more; shape and prompt tokens "
                    "are right"
                )
        raise AssertionError(f"golden {name}: {found}")


def orphans(contract: str, names: Collection[str]) -> Iterator[str]:
    """What is wrong about each file under goldens/contract that none of ``names`` reaches.

    Hidden files are no goldens, but what an editor or a file manager leaves.
    """
    try:
        folder = resources.goldens_directory(contract)
    except SuiteError:  # A contract need not have goldens.
        return
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    files = [path for path in paths if not path.name.startswith(".")]
    fingerprints = {path.stem: path for path in files if _is_fingerprint(path)}
    used: set[str] = set()
    for path in files:
        if path in fingerprints.values():
            continue
        tied = path.parts[1:-1]
        told = f"{folder.name}/{path.as_posix()}"
        if f"{path.parts[0]}/{path.stem}" not in names or path.suffix != ".json" or len(tied) > 1:
            yield f"no case uses the golden {told}; delete it, or write its case"
        elif not fingerprints.keys() >= set(tied):
            lacks = f"is of {tied[0]}, which has no fingerprint"
            yield f"the golden {told} {lacks}; bring that back, or delete the golden"
        used.update(tied)
    for name in sorted(fingerprints.keys() - used):
        told = f"{folder.name}/{fingerprints[name].as_posix()}"
        yield f"no golden is of the fingerprint {told}; delete it"


def _is_fingerprint(path: PurePath) -> bool:
    return path.parent == PurePath(FINGERPRINTS) and path.suffix == ".json"
