"""Event streams that are framed, cut or counted wrongly."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.mutants.faults.registry import breaks, on_both
from tests.mutants.toy.model import EMOJI, Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, COMPLETIONS, Json, Part, Toy
from tests.mutants.toy.wire import Handler


@breaks(
    *on_both("streaming.usage.unasked", "streaming.usage.declined"),
    *on_both("streaming.options.null", "streaming.options.empty", "streaming.options.unnamed"),
    "streaming.chunk.exact",
    "streaming.chunk.printed",
    "completions.streaming.exact",
)
class StreamsUsageUnasked(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return super().events(path, body | {"stream_options": {"include_usage": True}})


@breaks(*on_both("streaming.done", "streaming.bytes.done", "streaming.usage.chunk"))
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


@breaks("streaming.chunk.role")
class BeginsWithAnEmptyChunk(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for number, event in enumerate(super().events(path, body)):
            if number == 0 and path == CHAT:
                chunk = json.loads(event)
                chunk["choices"][0]["delta"] = {"content": ""}
                yield self.encode(chunk)
            yield event


@breaks(*on_both("streaming.chunk.identity", "streaming.chunk.id"))
class RenamesItsChunks(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for number, event in enumerate(super().events(path, body)):
            yield event.replace('"id":"', f'"id":"{number}-')


@breaks(
    *on_both("streaming.chunk.as-decoded", "streaming.stop.hidden"),
    *on_both("stop.split-over-tokens", "max-tokens.absent"),
)
class StreamsAllAtOnce(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        *parts, reason = super().parts(prompt, body)
        texts = [part for part in parts if isinstance(part, Part)]
        ids = [token for part in texts for token in part.ids]
        yield Part("".join(part.text for part in texts), ids)
        yield reason


@breaks(
    *on_both("streaming.final.reason"),
    "streaming.chunk.exact",
    "streaming.chunk.printed",
    "completions.streaming.exact",
)
class AlwaysHasAReason(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        return super().choice(path, text, reason or "length")


@breaks(*on_both("streaming.text.characters"))
class CutsCharacters(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        return super().choice(path, text.replace(EMOJI, "\ufffd\ufffd"), reason)


@breaks("fields.token-ids.place")
class PutsIdsOnTheChoice(Toy):
    def with_ids(self, chunk: Json, ids: list[int]) -> Json:
        return chunk | {"choices": [chunk["choices"][0] | {"token_ids": ids}]}


class _HtmlHandler(Handler):
    def send_header(self, keyword: str, value: str) -> None:
        super().send_header(keyword, value.replace("text/event-stream", "text/html"))


@breaks(
    *on_both("streaming.media-type"),
    "streaming.chunk.exact",
    "streaming.chunk.printed",
    "completions.streaming.exact",
)
class StreamsHtml(Toy):
    handler = _HtmlHandler


@breaks(*on_both("streaming.bytes.events", "streaming.bytes.done"))
class EndsLinesAsWindows(Toy):
    def event_bytes(self, event: str) -> bytes:
        return super().event_bytes(event).replace(b"\n", b"\r\n")


@breaks(*on_both("streaming.bytes.events"))
class SendsComments(Toy):
    def event_bytes(self, event: str) -> bytes:
        return b": still here\n\n" * (event == "[DONE]") + super().event_bytes(event)


@breaks(*on_both("streaming.framing", "streaming.bytes.events", "streaming.bytes.done"))
class NamesItsEvents(Toy):
    def event_bytes(self, event: str) -> bytes:
        return b"event: chunk\n" + super().event_bytes(event)


@breaks(*on_both("streaming.done", "streaming.bytes.done"))
class IsDoneTwice(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        yield from super().events(path, body)
        yield "[DONE]"


class _HalvingHandler(Handler):
    def stream(self, events: Iterator[str]) -> None:
        super().stream(self.halved(events))

    def halved(self, events: Iterator[str]) -> Iterator[str]:
        """The events, with one more that begins in the middle of an emoji."""
        for event in events:
            first, emoji, rest = event.partition(EMOJI)
            if emoji:
                half, other = (
                    part.decode(errors="surrogateescape")
                    for part in (emoji.encode()[:2], emoji.encode()[2:])
                )
                yield f"{first}{half}{rest}"
                yield f"{first}{other}{rest}"
            else:
                yield event


@breaks(*on_both("streaming.bytes.utf8", "streaming.text.characters"))
class SplitsCharactersOverEvents(Toy):
    handler = _HalvingHandler


@breaks(
    *on_both("streaming.chunk.shape"),
    *on_both("streaming.chunk.identity"),
    "streaming.chunk.exact",
    "completions.streaming.exact",
)
class ChunksWithoutATime(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for event in super().events(path, body):
            chunk = json.loads(event) if event.startswith("{") else None
            yield event if chunk is None else self.encode(chunk | {"created": None})


@breaks(*on_both("streaming.chunk.object"), "streaming.chunk.printed")
class CallsChunksOtherwise(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for event in super().events(path, body):
            yield event.replace('.chunk"', '"').replace('"text_completion"', '"text_chunk"')


@breaks(*on_both("streaming.chunk.index"), "streaming.chunk.printed")
class CountsChunks(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        return super().choice(path, text, reason) | {"index": 1}


@breaks("streaming.final.empty", "streaming.chunk.exact", "streaming.chunk.printed")
class EndsWithAnEmptyText(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        choice = super().choice(path, text, reason)
        return choice | ({"delta": {"content": ""}} if reason and path == CHAT else {})


@breaks(
    *on_both("streaming.text.same", "streaming.text.characters"),
    *on_both("streaming.stop.hidden", "streaming.stop.released"),
    "streaming.chunk.printed",
)
class StreamsInCapitals(Toy):
    def choice(self, path: str, text: str, reason: str | None) -> Json:
        return super().choice(path, text.upper(), reason)


@breaks(*on_both("streaming.usage.same"))
class CountsChunksForTokens(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for event in super().events(path, body):
            yield event.replace('"completion_tokens":1', '"completion_tokens":7')


@breaks(*on_both("streaming.usage.members"))
class SendsTheUsageBare(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for event in super().events(path, body):
            yield event.replace('"choices":[],', '"choices":[],"final":true,')


@breaks(*on_both("streaming.usage.chunk"))
class SendsTheUsageWithTheEnd(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        for event in super().events(path, body):
            end = self.encode([self.choice(path, "", "length")])
            yield event.replace('"choices":[],', f'"choices":{end},')


@breaks(*on_both("streaming.field.false", "streaming.field.null", "streaming.options.null"))
class AlwaysStreams(Toy):
    def post(self, path: str, body: Json) -> Json | str | Iterator[str]:
        named = [
            name
            for name in ("stream", "stream_options")
            if body.get(name, 0) is None or body.get(name) is False
        ]
        return super().post(path, body | ({"stream": True} if named else {}))


@breaks(*on_both("streaming.refusal"))
class RefusesInEvents(Toy):
    def post(self, path: str, body: Json) -> Json | str | Iterator[str]:
        try:
            return super().post(path, body)
        except Refused as refused:
            if not body.get("stream") or refused.param not in ("model", "max_tokens"):
                raise
            return iter([self.encode(self.error(refused)), "[DONE]"])


@breaks("completions.streaming.final.empty")
class EndsWithTheLastText(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        held = ""
        for event in super().events(path, body):
            chunk = json.loads(event) if path == COMPLETIONS and event.startswith("{") else {}
            choices = chunk.get("choices") or [{}]
            if choices[0].get("finish_reason") and held:
                choices[0]["text"] = json.loads(held)["choices"][0]["text"]
                event, held = self.encode(chunk), ""
            if held:
                yield held
            held = event
        yield held
