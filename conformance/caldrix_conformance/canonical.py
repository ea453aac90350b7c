"""The canonical form of an answer: what two right answers to one request have in common.

Ids and times are redacted, text deltas that follow each other become one, and for a shape every
value gives way to its type. Framing is judged apart (`caldrix_conformance.events`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from caldrix_conformance.answers import Answer
from caldrix_conformance.events import parse_events

REDACTED = {"created": "<created>", "id": "<id>"}


def canonical_answer(answer: Answer) -> dict[str, Any]:
    """Status, media type, and the body or the events of ``answer``, in canonical form."""
    media_type = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    form: dict[str, Any] = {"status": answer.status, "content_type": media_type}
    if media_type == "text/event-stream":
        form["events"] = merge_deltas(_event_value(event.data) for event in _events(answer))
    else:
        form["body"] = redact(answer.object)
    return form


def redact(value: dict[str, Any]) -> dict[str, Any]:
    """``value`` with the members that differ between two right answers replaced by their names."""
    return {name: REDACTED.get(name, member) for name, member in value.items()}


def merge_deltas(events: Iterable[Any]) -> list[Any]:
    """``events`` with each run of chunks that differ only in text and token ids made one."""
    merged: list[Any] = []
    for event in events:
        if merged and _frame(event) is not None and _frame(event) == _frame(merged[-1]):
            merged[-1] = _join(merged[-1], event)
        else:
            merged.append(event)
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
    if isinstance(stored, list) and isinstance(seen, list) and len(stored) == len(seen):
        pairs = enumerate(zip(stored, seen, strict=True))
        found = (first_difference(one, other, f"{path}[{i}]") for i, (one, other) in pairs)
        return next((difference for difference in found if difference is not None), None)
    if stored == seen and type(stored) is type(seen):
        return None
    return f"{path} is {json.dumps(seen)}, in the golden {json.dumps(stored)}"


def _events(answer: Answer) -> Sequence[Any]:
    return parse_events(answer.body)


def _event_value(data: str) -> Any:
    if data == "[DONE]":
        return data
    try:
        value = json.loads(data)
    except ValueError:
        raise AssertionError(f"an event's data is not JSON: {data!r}") from None
    return redact(value) if isinstance(value, dict) else value


def _frame(event: Any) -> Any:
    """A text chunk without its text and token ids; None for an event that is no such chunk."""
    if not isinstance(event, dict) or len(event.get("choices") or ()) != 1:
        return None
    choice = event["choices"][0]
    holder = choice.get("delta", choice)
    if choice.get("finish_reason") is not None or not isinstance(_text(holder), str):
        return None
    bare = {name: value for name, value in holder.items() if name not in _MERGED}
    frame = {name: value for name, value in choice.items() if name not in (*_MERGED, "delta")}
    rest = {name: value for name, value in event.items() if name not in (*_MERGED, "choices")}
    return rest, frame, bare, "delta" in choice


_MERGED = ("content", "text", "token_ids")


def _text(holder: dict[str, Any]) -> Any:
    return holder.get("content", holder.get("text"))


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
