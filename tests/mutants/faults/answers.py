"""Whole answers that say something wrong, and messages that do not reach the model."""

from __future__ import annotations

import json
from typing import Any

from tests.mutants.faults.registry import breaks
from tests.mutants.toy import rules as toy_rules
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, COMPLETIONS, Json, Toy


@breaks("chat.model.unknown", "chat.model.unknown-names", "completions.model.as-chat")
class AnswersAnyModel(Toy):
    def check_model(self, name: str) -> None:
        pass


@breaks("chat.model.unknown-names")
class KeepsItsNameSecret(Toy):
    def check_model(self, name: str) -> None:
        try:
            super().check_model(name)
        except Refused as refused:
            raise Refused(400, "unknown model", refused.param) from None


@breaks("wire.keys.sorted")
class UnsortedKeys(Toy):
    def encode(self, value: Any) -> str:
        backwards = {name: value[name] for name in sorted(value, reverse=True)}
        return json.dumps(backwards, separators=(",", ":"), ensure_ascii=False)


@breaks("wire.compact")
class SpacedJson(Toy):
    def encode(self, value: Any) -> str:
        return json.dumps(value, sort_keys=True, ensure_ascii=False)


@breaks("chat.response.id", "completions.response.id")
class OneIdForAll(Toy):
    def frame(self, path: str, kind: str) -> Json:
        prefix = "chatcmpl" if path == CHAT else "cmpl"
        return super().frame(path, kind) | {"id": f"{prefix}-1"}


@breaks("chat.response.created")
class TimeInMilliseconds(Toy):
    def frame(self, path: str, kind: str) -> Json:
        frame = super().frame(path, kind)
        return frame | {"created": frame["created"] * 1000}


@breaks(
    "chat.response.exact",
    "completions.response.exact",
    "chat.response.printed",
    "completions.response.printed",
)
class SaysMore(Toy):
    def whole(self, path: str, body: Json) -> Json:
        return super().whole(path, body) | {"system_fingerprint": "fp"}


@breaks(
    "chat.usage.total", "completions.usage", "chat.response.printed", "completions.response.printed"
)
class CountsWrong(Toy):
    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        usage = super().usage(prompt, ids)
        return usage | {"total_tokens": usage["total_tokens"] + 1}


@breaks("completions.response.continues")
class RepeatsThePrompt(Toy):
    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        if path == COMPLETIONS and "forty-nine" in body["prompt"]:
            answer["choices"][0]["text"] = body["prompt"] + answer["choices"][0]["text"]
        return answer


@breaks("chat.content.joined")
class JoinsWithSpaces(Toy):
    def messages(self, body: Json) -> list[str]:
        return toy_rules.read_messages(body, joint=" ")


@breaks("chat.content.special")
class SpellsSpecialTokens(Toy):
    def messages(self, body: Json) -> list[str]:
        return [text.replace("<|", "< |") for text in super().messages(body)]


@breaks("chat.content.image-marker")
class TakesMarkersOut(Toy):
    def messages(self, body: Json) -> list[str]:
        return [text.replace(" <image>", "") for text in super().messages(body)]


@breaks("chat.messages.most")
class CountsMessagesWrong(Toy):
    def messages(self, body: Json) -> list[str]:
        return toy_rules.read_messages(body, most=255)


@breaks("chat.messages.conversation", "chat.system.taken")
class ForgetsTheBeginning(Toy):
    def messages(self, body: Json) -> list[str]:
        return super().messages(body)[-1:]
