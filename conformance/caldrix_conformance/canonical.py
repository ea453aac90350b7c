"""The canonical form of an answer: what two right answers to one request have in common.

Ids and times are redacted, text deltas that follow each other become one, and for a shape every
value gives way to its type. Framing is judged apart (`caldrix_conformance.events`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from caldrix_conformance.answers import Answer, chunks_of

REDACTED = {"created": "<created>", "id": "<id>"}


def canonical_answer(answer: Answer) -> dict[str, Any]:
    """Status, media type, and the body or the merged chunks of ``answer``, with values redacted."""
    return _form(answer, redact)


def canonical_shape(answer: Answer) -> dict[str, Any]:
    """The same with every value in the body or the chunks replaced by its type."""
    return _form(answer, shape)


def _form(answer: Answer, reduce: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    form: dict[str, Any] = {"status": answer.status, "content_type": media_type}
    if media_type == "text/event-stream":
        form["chunks"] = [reduce(chunk) for chunk in merge_deltas(chunks_of(answer.body))]
    else:
        form["body"] = reduce(answer.object)
    return form


def redact(value: dict[str, Any]) -> dict[str, Any]:
    """``value`` with the members that differ between two right answers replaced by their names."""
    return {name: REDACTED.get(name, member) for name, member in value.items()}


def merge_deltas(chunks: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """``chunks`` with each run of them that differ only in text and token ids made one."""
    merged: list[dict[str, Any]] = []
    for chunk in chunks:
        if merged and _frame(chunk) is not None and _frame(chunk) == _frame(merged[-1]):
            merged[-1] = _join(merged[-1], chunk)
        else:
            merged.append(chunk)
    return merged


def shape(value: Any) -> Any:
    """``value`` with every string, number and so on replaced by its JSON type.

    An array becomes the list of its items' distinct shapes, in the order they first come.
    """
    if isinstance(value, dict):
        return {name: shape(member) for name, member in sorted(value.items())}
    if isinstance(value, list):
        shapes: list[Any] = []
        for item in map(shape, value):
            if item not in shapes:
                shapes.append(item)
        return shapes
    return _TYPE_NAMES[type(value)]


_TYPE_NAMES = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
}


def first_difference(stored: Any, seen: Any, path: str = "") -> str | None:
    """Where two JSON values first differ, as a sentence; None where they are equal."""
    if isinstance(stored, dict) and isinstance(seen, dict):
        for name in dict.fromkeys((*stored, *seen)):
            here = f"{path}.{name}".lstrip(".")
            if name not in seen:
                return f"{here} is missing"
            if name not in stored:
                return f"{here} is not in the golden: {json.dumps(seen[name])}"
            difference = first_difference(stored[name], seen[name], here)
            if difference is not None:
                return difference
        return None
    if isinstance(stored, list) and isinstance(seen, list):
        if len(stored) != len(seen):
            return f"{path} has {len(seen)} items, in the golden {len(stored)}"
        pairs = enumerate(zip(stored, seen, strict=True))
        found = (first_difference(one, other, f"{path}[{i}]") for i, (one, other) in pairs)
        return next((difference for difference in found if difference is not None), None)
    if stored == seen and type(stored) is type(seen):
        return None
    return f"{path} is {json.dumps(seen)}, in the golden {json.dumps(stored)}"


_MERGED = ("content", "text", "token_ids")


def _frame(chunk: dict[str, Any]) -> Any:
    """A text chunk without its text and what is redacted; None for a chunk that is no such."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    delta = choice.get("delta", choice)
    if choice.get("finish_reason") is not None or not isinstance(delta, dict):
        return None
    if not isinstance(delta.get("content", delta.get("text")), str):
        return None
    return (
        _without(chunk, *_MERGED, *REDACTED, "choices"),
        _without(choice, *_MERGED, "delta"),
        _without(delta, *_MERGED),
    )


def _without(value: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: member for name, member in value.items() if name not in names}


def _join(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Two JSON objects of one frame as one: texts and token ids end to end."""
    joined = dict(first)
    for name, value in second.items():
        if name in _MERGED:
            joined[name] = joined[name] + value if name in joined else value
        elif name == "choices":
            joined[name] = [_join(first[name][0], value[0])]
        elif name == "delta":
            joined[name] = _join(first[name], value)
    return joined
