"""Caps and stop strings that are missed, leaked, or called by another name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.mutants.faults.registry import breaks, on_both
from tests.mutants.toy.model import END, TOKENS, Prompt
from tests.mutants.toy.server import CHAT, Json, Part, Toy


@breaks(*on_both("max-tokens.absent"))
class HiddenCap(Toy):
    def cap(self, body: Json) -> int:
        given = body.get("max_tokens") or body.get("max_completion_tokens")
        return super().cap(body) if given else 16


@breaks(
    *on_both("max-tokens.caps", "max-tokens.other-name", "max-tokens.one"),
    *on_both("max-tokens.null", "max-tokens.agreement"),
    "completions.ignore-eos.runs-on",
    "chat.response.printed",
    "completions.response.printed",
    "streaming.chunk.printed",
)
class CallsEveryEndStop(Toy):
    def reason_at_cap(self) -> str:
        return "stop"


@breaks(*on_both("end.stop"))
class CallsEveryEndLength(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        for part in super().parts(prompt, body):
            yield "length" if part == "stop" and "stop" not in body else part


@breaks("completions.ignore-eos.runs-on")
class StopsAtTheEndAnyhow(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        return super().parts(prompt, body | {"ignore_eos": False})


@breaks(*on_both("streaming.stop.hidden"))
class StreamsTheStop(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        if not body.get("stream"):
            return super().parts(prompt, body)
        # As if the stop were looked for only once the text is out.
        reasons = [part for part in super().parts(prompt, body) if isinstance(part, str)]
        texts = [part for part in super().parts(prompt, body | {"stop": None}) if part != "length"]
        stopped = self.stops(body) and reasons == ["stop"]
        return iter([*(texts[:4] if stopped else texts), *reasons])


@breaks(
    *on_both("stop.split-over-tokens", "stop.characters", "streaming.stop.hidden"),
    "completions.stop.at-once",
)
class LooksForStopsInSingleTokens(Toy):
    def stops(self, body: Json) -> list[str]:
        texts = [token.decode("utf-8", "replace") for token in TOKENS]
        return [stop for stop in super().stops(body) if any(stop in text for text in texts)]


@breaks(*on_both("streaming.stop.released"))
class LosesTheTail(Toy):
    def tail(self, text: str, sent: str) -> str:
        return ""


@breaks(*on_both("stop.longest"))
class CountsStopsDouble(Toy):
    def check(self, path: str, body: Json) -> None:
        stop = body.get("stop")
        if isinstance(stop, str):
            super().check(path, body | {"stop": stop * 2})
        else:
            super().check(path, body)


@breaks(
    *on_both("max-tokens.one"),
    "chat.usage.completion",
)
class WritesTwoTokensAtLeast(Toy):
    def cap(self, body: Json) -> int:
        return max(super().cap(body), 2)


@breaks(*on_both("max-tokens.other-name", "max-tokens.null"))
class KnowsOneNameOfTheCap(Toy):
    def cap(self, body: Json) -> int:
        return super().cap(body | {"max_completion_tokens": None})


@breaks("chat.ignore-eos")
class IgnoresEosInCompletionsAlone(Toy):
    def post(self, path: str, body: Json) -> Any:
        return super().post(path, body | ({"ignore_eos": None} if path == CHAT else {}))


@breaks("completions.ignore-eos.stop")
class IgnoresStopsWithEos(Toy):
    def stops(self, body: Json) -> list[str]:
        return [] if body.get("ignore_eos") else super().stops(body)


@breaks("completions.ignore-eos.off")
class TakesAnyMentionForYes(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        return super().parts(prompt, body | {"ignore_eos": "ignore_eos" in body})


@breaks(
    *on_both("stop.string", "stop.reason", "stop.several", "stop.split-over-tokens"),
    *on_both("stop.shortest", "stop.at-once", "stop.characters", "streaming.stop.hidden"),
    *on_both("max-tokens.beyond-context"),
    "completions.ignore-eos.stop",
)
class IgnoresStops(Toy):
    def stops(self, body: Json) -> list[str]:
        return []


@breaks(
    *on_both("stop.reason", "streaming.stop.hidden", "max-tokens.beyond-context"),
    "completions.ignore-eos.stop",
)
class CallsAStopLength(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        for part in super().parts(prompt, body):
            yield "length" if part == "stop" and self.stops(body) else part


@breaks(*on_both("stop.several"))
class KnowsOneStopOfMany(Toy):
    def stops(self, body: Json) -> list[str]:
        stops = super().stops(body)
        return stops if len(set(stops)) < 4 or " " in stops else stops[:1]


@breaks(*on_both("stop.prompt"))
class LooksForStopsInThePrompt(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        found = any(stop in prompt.text for stop in self.stops(body) if len(stop) > 5)
        return iter([Part("", []), "stop"]) if found else super().parts(prompt, body)


@breaks("completions.end.uncounted")
class CountsTheEnd(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        for part in super().parts(prompt, body):
            if part == "stop" and not self.stops(body):
                yield Part("", [END])
            yield part
