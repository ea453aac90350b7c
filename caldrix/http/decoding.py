"""From a checked JSON object to an attrs request, with errors that know their field.

A request class annotates each field with a `Rule`, as in ``Annotated[int, Rule(positive)]``; cattrs
walks the class and the body together. Nothing is coerced: a rule takes the JSON value as it is and
returns what the field holds, or raises `Invalid`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, TypeVar, get_args, get_origin

from attrs import frozen
from cattrs import Converter
from cattrs.errors import (
    AttributeValidationNote,
    ClassValidationError,
    IterableValidationError,
    IterableValidationNote,
)

from caldrix.http.body import Path, SpelledFloat, format_path, shorten
from caldrix.http.errors import ApiError

T = TypeVar("T")


class Invalid(ValueError):
    """A value that a rule does not take; ``path`` leads from the rule's value to the fault."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.message = message
        self.path = path


@frozen
class Rule:
    """How a field's value is read: ``read`` returns it or raises Invalid."""

    read: Callable[[object], object]


def decode(body: Mapping[str, object], request_class: type[T]) -> T:
    """The request that ``body`` holds. Raises ApiError, a 400 with the path of the fault.

    Fields that the class does not have are passed over. Of several faults the one whose field the
    class names first is told.
    """
    try:
        return read_object(body, request_class)
    except Invalid as invalid:
        raise ApiError(400, invalid.message, param=format_path(invalid.path)) from None


def read_object(value: Mapping[str, object], value_class: type[T]) -> T:
    """What ``value``, an object inside a body, holds. Raises Invalid with the path inside it."""
    try:
        return _converter.structure(value, value_class)
    except (ClassValidationError, IterableValidationError) as error:
        raise _first_fault(error, ()) from None


def spell(value: object) -> str:
    """A JSON value for an error message: numbers as they were written, long things shortened."""
    if isinstance(value, SpelledFloat):
        return shorten(value.spelling)
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return json.dumps(shorten(value), ensure_ascii=False)
    return shorten(json.dumps(value))


def _first_fault(error: Exception, path: Path) -> Invalid:
    step = _step(error)
    if step is not None:
        path = (*path, step)
    if isinstance(error, ClassValidationError | IterableValidationError):
        return _first_fault(error.exceptions[0], path)
    if isinstance(error, Invalid):
        return Invalid(error.message, (*path, *error.path))
    if isinstance(error, KeyError):
        # cattrs' way to say that a field without a default is not there.
        return Invalid("is required", path)
    raise error


def _step(error: Exception) -> str | int | None:
    for note in getattr(error, "__notes__", ()):
        if isinstance(note, AttributeValidationNote):
            return note.name
        if isinstance(note, IterableValidationNote):
            assert isinstance(note.index, int)
            return note.index
    return None


def _rule_of(annotation: object) -> Rule | None:
    if get_origin(annotation) is not Annotated:
        return None
    rules = [extra for extra in get_args(annotation)[1:] if isinstance(extra, Rule)]
    return rules[0] if rules else None


def _apply_rule(value: object, annotation: object) -> object:
    rule = _rule_of(annotation)
    assert rule is not None
    return rule.read(value)


_converter = Converter()
_converter.register_structure_hook_func(
    lambda annotation: _rule_of(annotation) is not None, _apply_rule
)
