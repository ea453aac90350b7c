"""The JSON schema of clause files, for editors: they complete keys and point out what's wrong.

Usage: python -m caldrix_conformance.clause_schema > spec/clause-file.schema.json

Made of the very classes that the loader reads into, so that the two can't drift apart.
"""

from __future__ import annotations

import json
import sys
from enum import Enum
from typing import Any, get_args, get_type_hints

import attrs

from caldrix_conformance.clauses import ID, Area, Clause

DIRECTIVE = "#:schema ../clause-file.schema.json"
"""The first line of each clause file, by which editors find the schema."""

_TEXTS = {
    "title": "What the area is about.",
    "clause": "The observable promises, one table each.",
    "id": "The clause's name for good: the area (this file's name), a topic, a detail.",
    "level": "A broken must fails a run, a broken should does with --strict.",
    "promise": "What a client can observe, in one or two plain sentences of our own.",
    "where": "The heading in the document under which it stands, or which leaves it open.",
    "needs": "What a target must be able to do to be held to it; an area's needs are its clauses'.",
    "source": "Who makes the promise: the document, or this project where that is silent.",
    "untestable": "Why no black-box case can judge it, for a clause without cases.",
}


def schema() -> dict[str, Any]:
    """The schema as a value."""
    area = _table(Area)
    area["properties"]["clause"] |= {"minItems": 1, "items": _table(Clause)}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Clauses of a contract's area",
        **area,
    }


def schema_text() -> str:
    """The schema as the text of its file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _table(kind: type[attrs.AttrsInstance]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    fields = attrs.fields(kind)
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [one.name for one in fields if one.default is attrs.NOTHING],
        "properties": {one.name: _property(one, hints[one.name]) for one in fields},
    }


def _property(one: attrs.Attribute[Any], hint: Any) -> dict[str, Any]:
    found = {"description": _TEXTS[one.name], **_type(hint)}
    if one.name == "id":
        found["pattern"] = f"^{ID.pattern}$"
    if one.default is not attrs.NOTHING and isinstance(one.default, Enum):
        found["default"] = one.default.value
    return found


def _type(hint: Any) -> dict[str, Any]:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    inner = [kind for kind in get_args(hint) if kind not in (type(None), ...)]
    if str in (hint, *inner):
        return {"type": "string", "pattern": r"\S"}
    if issubclass(inner[0], Enum):
        return {"type": "array", "items": _type(inner[0])}
    return {"type": "array"}


if __name__ == "__main__":
    sys.stdout.write(schema_text())
