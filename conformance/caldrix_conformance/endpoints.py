"""The endpoints: where the two generating ones keep the parts of their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from caldrix_conformance.capabilities import Capability


@frozen
class Endpoint:
    """One of the two routes that generate text."""

    name: str
    path: str
    prompt_field: str
    capability: Capability
    other_field: str
    """The other endpoint's name for its prompt, which is refused here."""
    id_prefix: str
    whole_object: str
    """What ``object`` says in a whole answer; ``chunk_object`` in a chunk."""
    chunk_object: str

    def prompt(self, text: str) -> dict[str, Any]:
        """The field that asks about ``text``: one user message, or a prompt."""
        if self.prompt_field == "messages":
            return {"messages": [{"role": "user", "content": text}]}
        return {"prompt": text}

    def answer_text(self, choice: Mapping[str, Any]) -> Any:
        """The text of a whole answer's choice; KeyError or TypeError where it has another shape."""
        return choice["message"]["content"] if self.prompt_field == "messages" else choice["text"]

    def delta_text(self, choice: Mapping[str, Any]) -> Any:
        """The text of a chunk's choice, None for none; KeyError or TypeError as above."""
        if self.prompt_field == "messages":
            return choice["delta"].get("content")
        return choice["text"] or None


CHAT = Endpoint(
    name="chat",
    path="/v1/chat/completions",
    prompt_field="messages",
    capability=Capability.CHAT,
    other_field="prompt",
    id_prefix="chatcmpl-",
    whole_object="chat.completion",
    chunk_object="chat.completion.chunk",
)
COMPLETIONS = Endpoint(
    name="completions",
    path="/v1/completions",
    prompt_field="prompt",
    capability=Capability.COMPLETIONS,
    other_field="messages",
    id_prefix="cmpl-",
    whole_object="text_completion",
    chunk_object="text_completion",
)
ENDPOINTS = (CHAT, COMPLETIONS)


def clause_of(endpoint: Endpoint, topic: str) -> str:
    """The clause on ``topic`` of that endpoint, as in completions.stop.five.

    What the chat endpoint streams is an area of its own: its topics begin with ``streaming.``.
    """
    if endpoint is CHAT and topic.startswith("streaming."):
        return topic
    return f"{endpoint.name}.{topic}"


SYSTEMONE = "/v1/systemone"
"""The route of typed decisions, whose answers have a form of their own."""
