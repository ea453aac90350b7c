"""Event streams that are framed, cut or counted wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.model import EMOJI, Prompt
from tests.mutants.toy.server import CHAT, Json, Part, Toy


@breaks(
    "streaming.usage.unasked",
    "streaming.usage.declined",
    "streaming.chunk.exact",
    "streaming.chunk.printed",
    "completions.streaming.usage",
    "completions.streaming.exact",
)
class StreamsUsageUnasked(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return super().events(path, body | {"stream_options": {"include_usage": True}})


@breaks("streaming.done", "streaming.usage.chunk", "completions.streaming.framing")
class NeverDone(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return (event for event in super().events(path, body) if event != "[DONE]")


@breaks("streaming.chunk.role", "streaming.chunk.exact", "streaming.chunk.printed")
class SendsARoleFirst(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for number, event in enumerate(super().events(path, body)):
            chunk = json.loads(event) if event.startswith("{") else {}
            if number == 0 and path == CHAT:
                chunk["choices"][0]["delta"]["role"] = "assistant"
            yield self.encode(chunk) if chunk else event


@breaks("streaming.chunk.identity")
class RenamesItsChunks(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for number, event in enumerate(super().events(path, body)):
            yield event.replace('"id":"', f'"id":"{number}-')


@breaks(
    "streaming.chunk.as-decoded",
    "streaming.stop.hidden",
    "chat.stop.split-over-tokens",
    "completions.stop.as-chat",
    "chat.max-tokens.absent",
)
class StreamsAllAtOnce(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        *parts, reason = super().parts(prompt, body)
        texts = [part for part in parts if isinstance(part, Part)]
        ids = [token for part in texts for token in part.ids]
        yield Part("".join(part.text for part in texts), ids)
        yield reason


@breaks(
    "streaming.final.reason",
    "streaming.chunk.exact",
    "streaming.chunk.printed",
    "completions.streaming.exact",
)
class AlwaysHasAReason(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        return super().choice(path, text, reason or "length")


@breaks("streaming.text.characters")
class CutsCharacters(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        return super().choice(path, text.replace(EMOJI, "\ufffd\ufffd"), reason)


@breaks("fields.token-ids.place")
class PutsIdsOnTheChoice(Toy):
    def with_ids(self, chunk: Json, ids: list[int]) -> Json:
        return chunk | {"choices": [chunk["choices"][0] | {"token_ids": ids}]}
