"""A request for decisions as typed values: nothing in it is passed over, or taken for another.

Unlike the generating endpoints' requests, one with a field that nobody knows is refused, at any
level. Each refusal names its place, as in ``questions.team.criteria.billing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Annotated, TypeVar

from attrs import fields, frozen

from caldrix.decisions.errors import OutOfLimits
from caldrix.decisions.limits import Limits
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.values import Number, Text, Value
from caldrix.http.body import NegativeZero, Path, SpelledFloat, format_path
from caldrix.http.caldrix.fields import String
from caldrix.http.caldrix.requests import check_model
from caldrix.http.decoding import Invalid, Rule, decode, spell
from caldrix.http.errors import ApiError

Key = TypeVar("Key", bound=str | int)

_QUESTION = ("type", "instructions", "criteria")
_SIDES = ("true", "false")


def _read_questions(value: object) -> Mapping[str, Question]:
    if not isinstance(value, dict):
        raise Invalid(f"must be an object of questions, got {spell(value)}")
    return {name: _read_question(question, (name,)) for name, question in value.items()}


def _read_question(value: object, path: Path) -> Question:
    if not isinstance(value, dict):
        raise Invalid(f"must be a question, an object, got {spell(value)}", path)
    read = _reader(value, (*path, "type"))
    _refuse_others(value, _QUESTION, "a question", path)
    instructions = _read_optional(value.get("instructions"), (*path, "instructions"))
    return read(instructions, value.get("criteria"), (*path, "criteria"))


def _reader(
    question: Mapping[str, object], path: Path
) -> Callable[[Text | None, object, Path], Question]:
    """What reads a question of its type."""
    kind = question.get("type")
    if kind == "box":
        raise Invalid("box questions are not supported by this server", path)
    if not isinstance(kind, str) or kind not in _READERS:
        if "type" not in question:
            raise Invalid(f"is required: {_listed(_READERS, 'or')}", path)
        raise Invalid(f"must be {_listed(_READERS, 'or')}, got {spell(kind)}", path)
    return _READERS[kind]


def _read_choice(instructions: Text | None, criteria: object, path: Path) -> Choice:
    if not isinstance(criteria, dict):
        raise Invalid(_wants("an object of options and their descriptions", criteria), path)
    options = {
        name: _read_optional(description, (*path, name)) for name, description in criteria.items()
    }
    return Choice(instructions, options)


def _read_score(instructions: Text | None, criteria: object, path: Path) -> Score:
    if not isinstance(criteria, list):
        raise Invalid(_wants("an array of levels", criteria), path)
    levels = (_read_text(level, (*path, index)) for index, level in enumerate(criteria))
    return Score(instructions, tuple(levels))


def _read_noul(instructions: Text | None, criteria: object, path: Path) -> Noul:
    if criteria is None:
        return Noul(instructions)
    if not isinstance(criteria, dict):
        raise Invalid(f"must be an object with true and false, got {spell(criteria)}", path)
    _refuse_others(criteria, _SIDES, "a noul's criteria", path)
    yes, no = (_read_optional(criteria.get(side), (*path, side)) for side in _SIDES)
    return Noul(instructions, yes=yes, no=no)


_READERS: Mapping[str, Callable[[Text | None, object, Path], Question]] = {
    "choice": _read_choice,
    "score": _read_score,
    "noul": _read_noul,
}
"""By the type that a question gives."""


def _wants(what: str, got: object) -> str:
    return f"is required: {what}" if got is None else f"must be {what}, got {spell(got)}"


def _refuse_others(
    members: Iterable[str], known: Sequence[str], whose: str, path: Path = ()
) -> None:
    for name in members:
        if name not in known:
            problem = f"is no field of {whose}, which takes {_listed(known, 'and')}"
            raise Invalid(problem, (*path, name))


def _listed(names: Iterable[str], joint: str) -> str:
    *some, last = names
    return f"{', '.join(some)} {joint} {last}"


def _read_optional(value: object, path: Path) -> Text | None:
    return None if value is None else _read_text(value, path)


def _read_text(value: object, path: Path = ()) -> Text:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict | list):
        raise Invalid(f"must be a string, an object or an array, got {spell(value)}", path)
    try:
        return _read_object(value) if isinstance(value, dict) else _read_array(value)
    except Invalid as invalid:
        raise Invalid(invalid.message, (*path, *invalid.path)) from None


def _read_object(value: Mapping[str, object]) -> Mapping[str, Value]:
    return dict(_read_items(value.items()))


def _read_array(value: Sequence[object]) -> Sequence[Value]:
    return [item for _, item in _read_items(enumerate(value))]


def _read_items(items: Iterable[tuple[Key, object]]) -> Iterator[tuple[Key, Value]]:
    """The values inside of one. A place is made only where one is at fault: there may be many."""
    for key, value in items:
        try:
            read = _read_value(value)
        except Invalid as fault:
            raise Invalid(fault.message, (key, *fault.path)) from None
        yield key, read


def _read_value(value: object) -> Value:
    match value:
        case bool() | str() | None:
            return value
        case dict():
            return _read_object(value)
        case list():
            return _read_array(value)
    number = _read_number(value)
    if not number.is_finite:
        raise Invalid(f"is a number that no 64-bit float can hold, got {spell(value)}")
    return number


def _read_number(value: object) -> Number:
    if isinstance(value, SpelledFloat):
        return _number(value.spelling)
    assert isinstance(value, int)
    return _number("-0" if isinstance(value, NegativeZero) else str(value))


# Few in many: a body may hold a million numbers that are much the same.
_number = lru_cache(maxsize=1024)(Number)


@frozen(kw_only=True)
class DecisionRequest:
    """POST /v1/systemone."""

    model: String
    state: Annotated[Text, Rule(_read_text)]
    questions: Annotated[Mapping[str, Question], Rule(_read_questions)]
    """In the order that they were sent in."""


_REQUEST = tuple(field.name for field in fields(DecisionRequest))


def read_decision_request(
    body: Mapping[str, object], *, served_name: str, limits: Limits
) -> DecisionRequest:
    """A request to the model ``served_name``, which takes as much as ``limits`` say.

    Raises ApiError, a 400 naming the field at fault.
    """
    try:
        _refuse_others(body, _REQUEST, "a request to /v1/systemone")
    except Invalid as invalid:
        raise ApiError(400, invalid.message, param=format_path(invalid.path)) from None
    request = decode(body, DecisionRequest)
    check_model(request.model, served_name)
    with _told_of():
        limits.check_number(len(request.questions))
    for name, question in request.questions.items():
        with _told_of(name):
            limits.check(question)
    return request


@contextmanager
def _told_of(*question: str) -> Iterator[None]:
    """What is out of limits, as clients are told, at its place in the request."""
    try:
        yield
    except OutOfLimits as error:
        param = format_path(("questions", *question, *error.path))
        raise ApiError(400, str(error), param=param) from error
