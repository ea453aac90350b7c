"""What golden files hold: captured answers, and the tokens that a tokenizer counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Literal

from attrs import evolve, field, frozen
from cattrs import BaseValidationError, Converter, transform_error

from caldrix_conformance.answers import Answer
from caldrix_conformance.canonical import canonical_answer, canonical_shape, shape, told
from caldrix_conformance.compare import Tolerance, first_difference
from caldrix_conformance.contracts.caldrix.arithmetic import canonical_arithmetic
from caldrix_conformance.errors import GoldenError

ANY_MODEL = "<model>"
"""Stands for the name of the target's model in what is sent and in what is compared."""

LEAST_MARGIN = 0.05
"""The gap between two logits under which another order of sums may change the better one."""


class Kind(Enum):
    """What of an answer a golden holds fast."""

    SHAPE = "shape"
    """Key sets, types and the order of events."""
    TEXT = "text"
    """Every value."""
    ARITHMETIC = "arithmetic"
    """What no model has a say in, of an answer to questions: names, orders, what follows."""
    COUNT = "count"
    """How many tokens each of many prompts has."""


AnswerKind = Literal[Kind.SHAPE, Kind.TEXT, Kind.ARITHMETIC]
"""Of a golden that holds an answer."""

_FORMS: Mapping[Kind, Callable[[Answer], dict[str, Any]]] = {
    Kind.SHAPE: canonical_shape,
    Kind.TEXT: canonical_answer,
    Kind.ARITHMETIC: canonical_arithmetic,
}
"""The canonical form that each compares."""


class Origin(Enum):
    """Where a golden's answer comes from."""

    CAPTURED = "captured"
    DOCUMENT = "document"
    """Printed in the contract's document: never rewritten."""


class Tie(Enum):
    """Which models give that answer."""

    ANY = "any model"
    NAME = "the model's name"
    """Those served under the name it was printed with: of a printed one nothing else is known."""
    FINGERPRINT = "the model's fingerprint"
    """Those that act as it does, whatever they are called: see `caldrix_conformance.fingerprint`.

    The golden lies in a folder of the fingerprint's name.
    """


@frozen(kw_only=True)
class Response:
    """An answer as it came."""

    status: int
    headers: Mapping[str, str]
    sha256: str
    """Of the body's bytes as they came: what a shape says of them leaves most edits unseen."""
    body: tuple[str, ...]
    """Its text, cut at line feeds, so that a stream can be read and compared line by line."""

    @property
    def raw(self) -> bytes:
        """The body's bytes."""
        return "\n".join(self.body).encode()


@frozen(kw_only=True)
class Request:
    """A request that `Target.send` can send again."""

    method: str
    path: str
    body: dict[str, Any] | None

    def for_model(self, name: str) -> Request:
        """The request as a model served as ``name`` is asked."""
        return evolve(self, body=replace(self.body, ANY_MODEL, name))


@frozen(kw_only=True)
class Capture:
    """A golden that holds an answer."""

    kind: AnswerKind
    origin: Origin = Origin.CAPTURED
    model: str
    """The name under which the model that answered was served."""
    tie: Tie
    margin: float | None = None
    """The smallest gap between the two best logits along the answer, in float32; None: unknown."""
    tolerance: Tolerance | None = None
    """Of the floats in the answer."""
    request: Request
    response: Response
    canonical: dict[str, Any]

    @classmethod
    def of(
        cls,
        answer: Answer,
        kind: AnswerKind,
        *,
        model: str,
        tie: Tie,
        tolerance: Tolerance | None = None,
    ) -> Capture:
        """A capture of an answer of the model served as ``model``."""
        assert answer.request is None or isinstance(answer.request, dict)
        request = Request(method=answer.method, path=answer.path, body=answer.request)
        canonical = _FORMS[kind](answer)
        if tie is not Tie.NAME:
            request = evolve(request, body=replace(request.body, model, ANY_MODEL))
            canonical = replace(canonical, model, ANY_MODEL)
        try:
            text = answer.body.decode()
        except UnicodeDecodeError as error:
            raise AssertionError(
                f"the body is not UTF-8 at byte {error.start}; {answer.seen}"
            ) from None
        response = Response(
            status=answer.status,
            headers={name: answer.headers[name] for name in _KEPT if name in answer.headers},
            sha256=_digest(answer.body),
            body=tuple(text.split("\n")),
        )
        return cls(
            kind=kind,
            model=model,
            tie=tie,
            tolerance=tolerance,
            request=request,
            response=response,
            canonical=canonical,
        )

    def like(self, answer: Answer, *, model: str) -> Capture:
        """An answer of the model served as ``model``, captured as this one was."""
        return Capture.of(answer, self.kind, model=model, tie=self.tie, tolerance=self.tolerance)

    def again(self) -> Capture:
        """What its own raw answer is captured as."""
        request = self.request.for_model(self.model)
        answer = Answer(
            request.method,
            request.path,
            request.body,
            self.response.status,
            self.response.headers,
            self.response.raw,
        )
        return self.like(answer, model=self.model)

    @property
    def asserts_text(self) -> bool:
        """Whether a right model can be held to every value: no two tokens were nearly as good."""
        if self.kind is not Kind.TEXT or self.tie is not Tie.FINGERPRINT:
            return True
        return self.margin is not None and self.margin >= LEAST_MARGIN

    @property
    def compared(self) -> Any:
        """What of the canonical form is compared.

        Of a captured text that is what it tells. Its frame is for the goldens of kind shape, and a
        server that breaks that may still compute the model as it should.
        """
        captured_text = self.kind is Kind.TEXT and self.tie is Tie.FINGERPRINT
        return told(self.canonical) if captured_text else self.canonical

    def difference(self, seen: Capture) -> str | None:
        """Where ``seen`` first differs from this: neither raw answers nor margins are compared."""
        if (seen.kind, seen.tie) != (self.kind, self.tie):
            return "another kind of golden"
        for part in ("tolerance", "request"):
            one, other = (_converter.unstructure(getattr(each, part)) for each in (self, seen))
            difference = first_difference(one, other, part)
            if difference is not None:
                return difference
        return first_difference(self.compared, seen.compared, "answer", tolerance=self.tolerance)

    def loose_difference(self, seen: Capture) -> str | None:
        """Where ``seen`` differs in what the choice between two near tokens can't change.

        That is the types of what is compared, and how many tokens the prompt has.
        """
        one, other = (
            {"types": shape(each.compared), "prompt_tokens": _prompt_tokens(each.compared)}
            for each in (self, seen)
        )
        return first_difference(one, other, "answer")


@frozen(kw_only=True)
class Count:
    """How many tokens a prompt has."""

    prompt: str | Sequence[Mapping[str, Any]]
    """A text, or messages."""
    tokens: int


@frozen(kw_only=True)
class CountTable:
    """A golden that holds the tokens a tokenizer counts in many prompts."""

    kind: Literal[Kind.COUNT] = Kind.COUNT
    model: str
    """A model that the tokenizer, and for messages the template, belongs to."""
    path: str
    """The endpoint that was asked."""
    counts: Mapping[str, Count] = field(factory=dict)
    """By the name of what is special about the prompt."""

    tie: ClassVar[Tie] = Tie.FINGERPRINT

    def difference(self, seen: CountTable) -> str | None:
        """The first prompt that is counted otherwise, and how many more there are."""
        if self.path != seen.path:
            return f"{seen.path} was asked, for the golden {self.path}"
        differences = []
        for name in dict.fromkeys((*self.counts, *seen.counts)):
            one, other = self.counts.get(name), seen.counts.get(name)
            if one is None or other is None:
                return f"{name} is {'not in' if one is None else 'only in'} the golden"
            if one.prompt != other.prompt:
                return f"{name} is another prompt in the golden"
            if one.tokens != other.tokens:
                differences.append(
                    f"{name} has {other.tokens} prompt tokens, in the golden {one.tokens}: "
                    f"{json.dumps(one.prompt, ensure_ascii=False)}"
                )
        if not differences:
            return None
        more = f" ({len(differences) - 1} more differ)" if len(differences) > 1 else ""
        return f"{differences[0]}{more}"


StoredGolden = Capture | CountTable
"""What a golden's file holds."""


def golden_text(golden: StoredGolden) -> str:
    """A golden file's text."""
    return json.dumps(_converter.unstructure(golden), indent=2, ensure_ascii=False) + "\n"


def read_golden(text: str, name: str) -> StoredGolden:
    """The golden in a file's text. Raises GoldenError, naming the golden ``name``.

    A raw answer with another digest than its own was edited. A canonical form that the raw answer
    beside it doesn't have was written by hand, or by another version of the suite.
    """
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            raise TypeError("it holds no object")
        if "kind" not in value:
            raise ValueError("its kind is missing")
        type_: type[StoredGolden] = CountTable if Kind(value["kind"]) is Kind.COUNT else Capture
        golden = _converter.structure(value, type_)
    except (ValueError, TypeError, BaseValidationError) as error:
        raise GoldenError(f"the golden {name} can't be read: {_told(error)}") from error
    if isinstance(golden, Capture):
        _check_digest(golden, name)
        try:
            again = golden.again()
            difference = first_difference(golden.canonical, again.canonical, "canonical")
        except AssertionError as error:
            difference = str(error)
        if difference is not None:
            raise GoldenError(
                f"the golden {name} is not what its own raw answer says: {difference}"
            )
    return golden


def read_golden_file(path: Path, name: str) -> StoredGolden:
    """The golden at ``path``. Raises GoldenError, naming the golden ``name``."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise GoldenError(f"the golden {name} can't be read: {error}") from error
    return read_golden(text, name)


def replace(value: Any, old: str, new: str) -> Any:
    """``value`` with every string equal to ``old`` replaced."""
    if isinstance(value, dict):
        return {name: replace(member, old, new) for name, member in value.items()}
    if isinstance(value, list):
        return [replace(item, old, new) for item in value]
    return new if value == old else value


def _prompt_tokens(compared: Mapping[str, Any]) -> Any:
    usage = compared.get("usage")
    return usage.get("prompt_tokens") if isinstance(usage, dict) else None


def _check_digest(golden: Capture, name: str) -> None:
    seen = _digest(golden.response.raw)
    if seen == golden.response.sha256:
        return
    if golden.origin is Origin.DOCUMENT:
        remedy = "if the document prints it so, make that its sha256"
    else:
        remedy = "write it anew with `just goldens`"
    raise GoldenError(
        f"the raw answer in the golden {name} was edited, as its sha256 is {seen}; undo that, or "
        f"{remedy}"
    )


def _digest(body: bytes) -> str:
    return sha256(body).hexdigest()


def _told(error: Exception) -> str:
    if isinstance(error, BaseValidationError):
        return "; ".join(transform_error(error))
    return str(error)


_KEPT = ("content-type",)
_converter = Converter(forbid_extra_keys=True)
_converter.register_structure_hook(str | Sequence[Mapping[str, Any]], lambda value, _: value)
