"""Caps and stop strings that are missed, leaked, or called by another name."""

from __future__ import annotations

from collections.abc import Iterator

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.model import TOKENS, Prompt
from tests.mutants.toy.server import Json, Part, Toy


@breaks("chat.max-tokens.absent")
class HiddenCap(Toy):
    def cap(self, body: Json) -> int:
        given = "max_tokens" in body or "max_completion_tokens" in body
        return super().cap(body) if given else 16


@breaks(
    "chat.max-tokens.caps",
    "chat.max-tokens.other-name",
    "completions.max-tokens.as-chat",
    "completions.ignore-eos.runs-on",
    "chat.response.printed",
    "completions.response.printed",
    "streaming.chunk.printed",
)
class CallsEveryEndStop(Toy):
    def reason_at_cap(self) -> str:
        return "stop"


@breaks("chat.end.stop")
class CallsEveryEndLength(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        for part in super().parts(prompt, body):
            yield "length" if part == "stop" and "stop" not in body else part


@breaks("completions.ignore-eos.runs-on")
class StopsAtTheEndAnyhow(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        return super().parts(prompt, body | {"ignore_eos": False})


@breaks("streaming.stop.hidden")
class StreamsTheStop(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        if not body.get("stream"):
            return super().parts(prompt, body)
        # As if the stop were looked for only once the text is out.
        reasons = [part for part in super().parts(prompt, body) if isinstance(part, str)]
        texts = [part for part in super().parts(prompt, body | {"stop": None}) if part != "length"]
        stopped = self.stops(body) and reasons == ["stop"]
        return iter([*(texts[:4] if stopped else texts), *reasons])


@breaks("chat.stop.split-over-tokens", "completions.stop.as-chat", "streaming.stop.hidden")
class LooksForStopsInSingleTokens(Toy):
    def stops(self, body: Json) -> list[str]:
        texts = [token.decode("utf-8", "replace") for token in TOKENS]
        return [stop for stop in super().stops(body) if any(stop in text for text in texts)]


@breaks("streaming.stop.released")
class LosesTheTail(Toy):
    def tail(self, text: str, sent: str) -> str:
        return ""


@breaks("chat.stop.longest")
class CountsStopsDouble(Toy):
    def check(self, path: str, body: Json) -> None:
        stop = body.get("stop")
        if isinstance(stop, str):
            super().check(path, body | {"stop": stop * 2})
        else:
            super().check(path, body)
