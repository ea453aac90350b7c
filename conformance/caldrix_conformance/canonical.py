"""The canonical form of an answer: what two right answers to one request have in common.

Ids and times are redacted, text deltas that follow each other become one, how often guesses at
tokens went well is left out, and for a shape every value gives way to its type. Framing is judged
apart (`caldrix_conformance.events`).
"""

from __future__ import annotations

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
    form: dict[str, Any] = {"status": answer.status, "content_type": answer.media_type}
    if answer.media_type == "text/event-stream":
        chunks = merge_deltas(chunks_of(answer.body))
        form["chunks"] = [reduce(_without_guesses(chunk)) for chunk in chunks]
    else:
        form["body"] = reduce(_without_guesses(answer.object))
    return form


def _without_guesses(value: dict[str, Any]) -> dict[str, Any]:
    """``value`` without what its usage says of speculation, which depends on earlier requests."""
    usage = value.get("usage")
    if not isinstance(usage, dict) or "speculative" not in usage:
        return value
    return {**value, "usage": _without(usage, "speculative")}


def told(form: dict[str, Any]) -> dict[str, Any]:
    """What a generated answer tells, of a canonical form: the text, why it ends, and the counts.

    A stream tells the same as a whole answer, and members beyond those tell nothing. Any other
    answer is all that it tells.
    """
    parts = form["chunks"] if "chunks" in form else [form["body"]]
    if not any("choices" in part for part in parts):
        return form
    words: dict[str, Any] = {"status": form["status"], "text": "", "finish_reason": None}
    for part in parts:
        usage = part.get("usage")
        if isinstance(usage, dict):
            words["usage"] = {name: usage[name] for name in _COUNTS if name in usage}
        choices = part.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else {}
        if not isinstance(choice, dict):
            continue
        said = choice.get("message", choice.get("delta", choice))
        text = said.get("content", said.get("text")) if isinstance(said, dict) else None
        if isinstance(text, str):
            words["text"] += text
        ids = part.get("token_ids", choice.get("token_ids"))
        if isinstance(ids, list):
            words["token_ids"] = [*words.get("token_ids", ()), *ids]
        if choice.get("finish_reason") is not None:
            words["finish_reason"] = choice["finish_reason"]
    return words


_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


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


_MERGED = {"content": str, "text": str, "token_ids": list}
"""Members that are joined end to end, and what they must be for that."""


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
    if not all(_is_mergeable(each) for each in (chunk, choice, delta)):
        return None
    return (
        _without(chunk, *_MERGED, *REDACTED, "choices"),
        _without(choice, *_MERGED, "delta"),
        _without(delta, *_MERGED),
    )


def _is_mergeable(value: dict[str, Any]) -> bool:
    return all(isinstance(value.get(name, kind()), kind) for name, kind in _MERGED.items())


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
