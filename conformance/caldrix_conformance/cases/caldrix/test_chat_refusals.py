"""Chat requests that are refused, each with the field that its refusal names."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.contracts.caldrix.images import PIXEL
from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

USER = {"role": "user", "content": "Hi"}
TEXT = {"type": "text", "text": "Hi"}
IMAGE_PART = PIXEL.part()
SILENT = {"role": "assistant", "content": None}
CALL = {"name": "look_up", "arguments": "{}"}
CALLING = {
    **SILENT,
    "content": "",
    "tool_calls": [{"id": "1", "type": "function", "function": CALL}],
}
OLD_CALL = {**SILENT, "content": "", "function_call": CALL}


def part(content: Any) -> dict[str, Any]:
    """A request whose second part is ``content``."""
    return {"messages": [{"role": "user", "content": [TEXT, content]}]}


PLACE = "messages[0].content[1]"

REFUSALS = [
    row("chat.messages.required", {"messages": ABSENT}, "messages"),
    row("chat.messages.required", {"messages": None}, "messages"),
    row("chat.messages.required", {"messages": ABSENT, "stream": True}, "messages"),
    row("chat.messages.type", {"messages": "Hi"}, "messages"),
    row("chat.messages.type", {"messages": USER}, "messages"),
    row("chat.messages.type", {"messages": 7}, "messages"),
    row("chat.messages.type", {"messages": True}, "messages"),
    row("chat.messages.none", {"messages": []}, "messages"),
    row("chat.messages.too-many", {"messages": [USER] * 257}, "messages"),
    row("chat.messages.item", {"messages": ["Hi"]}, "messages[0]"),
    row("chat.messages.item", {"messages": [USER, None]}, "messages[1]"),
    row("chat.messages.item", {"messages": [[USER]]}, "messages[0]"),
    row("chat.messages.role", {"messages": [{"content": "Hi"}]}, "messages[0].role"),
    row("chat.messages.role", {"messages": [{"role": 1, "content": "Hi"}]}, "messages[0].role"),
    row("chat.messages.role", {"messages": [USER, {**USER, "role": None}]}, "messages[1].role"),
    row("chat.messages.role", {"messages": [{**USER, "role": ""}]}, "messages[0].role"),
    row("chat.content.type", {"messages": [{"role": "user", "content": 7}]}, "messages[0].content"),
    row("chat.content.type", {"messages": [USER, {**USER, "content": {}}]}, "messages[1].content"),
    row("chat.content.type", {"messages": [{**USER, "content": True}]}, "messages[0].content"),
    row("chat.content.required", {"messages": [{"role": "user"}]}, "messages[0].content"),
    row("chat.content.required", {"messages": [{**USER, "content": None}]}, "messages[0].content"),
    row("chat.content.null", {"messages": [USER, SILENT]}, "messages[1].content"),
    row("chat.content.none", {"messages": [{**USER, "content": []}]}, "messages[0].content"),
    row("chat.messages.tools", {"messages": [USER, CALLING, USER]}, "messages[1].tool_calls"),
    row("chat.messages.tools", {"messages": [USER, OLD_CALL, USER]}, "messages[1].function_call"),
    row("chat.content.part-type", part({"type": "input_audio", "input_audio": {}}), PLACE),
    row("chat.content.part-type", part({"type": 1, "text": "Hi"}), PLACE),
    row("chat.content.part-type", part({"type": "Text", "text": "Hi"}), PLACE),
    row("chat.content.part-malformed", part("Hi"), PLACE),
    row("chat.content.part-malformed", part({"text": "Hi"}), PLACE),
    row("chat.content.part-malformed", part({"type": "text"}), PLACE),
    row("chat.content.part-malformed", part({"type": "text", "text": 7}), PLACE),
    row("chat.content.part-malformed", part({"type": "text", "text": None}), PLACE),
    row("chat.content.part-malformed", part(None), PLACE),
    row("chat.content.part-malformed", part([TEXT]), PLACE),
    row("chat.content.image-refused", part(IMAGE_PART), PLACE),
    row("chat.prompt.refused", {"prompt": "Hi"}, "prompt"),
    row("chat.prompt.refused", {"prompt": [1, 2]}, "prompt"),
    row("chat.prompt.refused", {"prompt": "Hi", "messages": ABSENT}, "prompt"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSALS)
def test_refusal(target: Target, fields: dict[str, Any], param: str) -> None:
    target.ask(CHAT, **fields).expect_refusal(param)


@checks("chat.content.image-words")
@pytest.mark.parametrize("parts", [[IMAGE_PART], [TEXT, IMAGE_PART]], ids=["alone", "second"])
def test_image_words(target: Target, parts: list[Any]) -> None:
    messages = [{"role": "user", "content": parts}]
    message = target.ask(CHAT, messages=messages).expect(400).error.get("message")
    assert "this model takes text only" in str(message), f"the message is {message!r}"


@checks("chat.prompt.null")
def test_null_prompt(target: Target) -> None:
    target.chat(prompt=None)
