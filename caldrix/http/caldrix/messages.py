"""The messages of a chat request: their shape, and the parts of their content."""

from __future__ import annotations

from attrs import field, frozen

from caldrix.http.body import Path
from caldrix.http.decoding import Invalid, spell

MAX_MESSAGES = 256
_CALLS = ("tool_calls", "function_call")


@frozen
class ImagePart:
    """What stands for an image, not yet looked at, and where in the request."""

    image_url: object = field(repr=False)
    path: Path


Part = str | ImagePart


@frozen
class Message:
    """A message: texts and images in their order."""

    role: str
    parts: tuple[Part, ...] = field(repr=False)


def read_messages(value: object) -> tuple[Message, ...]:
    """The messages of a request. Raises Invalid with the path of the fault."""
    if not isinstance(value, list):
        raise Invalid(f"must be an array of messages, got {spell(value)}")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise Invalid(f"must hold 1 to {MAX_MESSAGES} messages, got {len(value)}")
    return tuple(_read_message(message, (index,)) for index, message in enumerate(value))


def _read_message(value: object, path: Path) -> Message:
    if not isinstance(value, dict):
        raise Invalid(f"must be an object with role and content, got {spell(value)}", path)
    for call in _CALLS:
        if value.get(call):
            raise Invalid("tool calls are not implemented", (*path, call))
    role = value.get("role")
    if not isinstance(role, str) or not role:
        problem = "is required" if role is None else f"must be a role's name, got {spell(role)}"
        raise Invalid(problem, (*path, "role"))
    return Message(role, _read_content(value.get("content"), (*path, "content")))


def _read_content(value: object, path: Path) -> tuple[Part, ...]:
    if isinstance(value, str):
        return (value,)
    if value is None:
        raise Invalid("is required: a string or an array of parts", path)
    if not isinstance(value, list) or not value:
        got = "an empty array" if value == [] else spell(value)
        raise Invalid(f"must be a string or an array of parts, got {got}", path)
    return tuple(_read_part(part, (*path, index)) for index, part in enumerate(value))


def _read_part(value: object, path: Path) -> Part:
    if not isinstance(value, dict):
        raise Invalid(f"must be a content part, an object, got {spell(value)}", path)
    kind = value.get("type")
    if kind == "image_url":
        return ImagePart(value.get("image_url"), ("messages", *path))
    if kind != "text":
        got = f"got {spell(kind)}" if "type" in value else "it has none"
        raise Invalid(f"a content part's type must be text or image_url, {got}", path)
    text = value.get("text")
    if not isinstance(text, str):
        raise Invalid(f"a text part's text must be a string, got {spell(text)}", path)
    return text
