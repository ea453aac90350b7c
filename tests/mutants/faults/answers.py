"""Whole answers that say something wrong, and messages that do not reach the model."""

from __future__ import annotations

import json
from typing import Any

from tests.mutants.faults.registry import breaks, on_both
from tests.mutants.toy import rules as toy_rules
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, COMPLETIONS, Json, Toy


@breaks(*on_both("model.unknown", "model.exact", "model.unknown-names"))
class AnswersAnyModel(Toy):
    def check_model(self, name: str) -> None:
        pass


@breaks(*on_both("model.unknown-names"))
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


@breaks(*on_both("response.id"), *on_both("streaming.chunk.id"))
class OneIdForAll(Toy):
    def frame(self, path: str, kind: str) -> Json:
        prefix = "chatcmpl" if path == CHAT else "cmpl"
        return super().frame(path, kind) | {"id": f"{prefix}-1"}


@breaks(*on_both("response.created"))
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


@breaks("chat.content.joined", "chat.content.empty-part")
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


@breaks(*on_both("response.shape", "response.exact", "response.created", "response.printed"))
class SaysLess(Toy):
    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        return {name: value for name, value in answer.items() if name != "created"}


@breaks(*on_both("response.object", "response.printed"))
class SwapsTheObjects(Toy):
    def whole(self, path: str, body: Json) -> Json:
        other = "text_completion" if path == CHAT else "chat.completion"
        return super().whole(path, body) | {"object": other}


@breaks(*on_both("response.choice", "response.printed"))
class CountsChoicesFromOne(Toy):
    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        answer["choices"][0]["index"] = 1
        return answer


@breaks(
    *on_both("response.model", "response.printed", "streaming.chunk.identity"),
    "streaming.chunk.printed",
)
class HasAnotherName(Toy):
    def frame(self, path: str, kind: str) -> Json:
        return super().frame(path, kind) | {"model": "qwen3-0.6b"}


@breaks(
    *on_both("response.printed"),
    *on_both("max-tokens.caps", "max-tokens.other-name", "max-tokens.one"),
    *on_both("max-tokens.null", "max-tokens.agreement"),
    "chat.usage.completion",
    "chat.ignore-eos",
    "completions.end.uncounted",
    "completions.usage",
    "completions.ignore-eos.runs-on",
)
class CountsAnotherToken(Toy):
    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        return super().usage(prompt, [*ids, 0])


@breaks(
    "chat.usage.prompt",
    "chat.messages.template",
    "chat.messages.conversation",
    "chat.system.taken",
    "chat.content.image-marker",
)
class CountsThreeForAnyPrompt(Toy):
    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        counted = prompt.counted or 3
        return super().usage(Prompt(prompt.ids, prompt.text, counted), ids)


@breaks("chat.messages.template")
class HasNoTemplateAndAnswers(Toy):
    def prompt(self, path: str, body: Json) -> Prompt:
        prompt = super().prompt(path, body)
        return prompt if prompt.counted or path != CHAT else Prompt.of_text(prompt.text)


@breaks("chat.content.parts", "chat.content.roles", "chat.content.image-marker")
class ReadsAPartTwice(Toy):
    def messages(self, body: Json) -> list[str]:
        texts = super().messages(body)
        contents = [message["content"] for message in body["messages"]]
        doubled = [isinstance(content, list) and len(content) == 1 for content in contents]
        return [text * (2 if twice else 1) for text, twice in zip(texts, doubled, strict=True)]


@breaks("chat.content.empty-part")
class PassesOverEmptyParts(Toy):
    def messages(self, body: Json) -> list[str]:
        super().messages(body)
        return super().messages(body | {"messages": [_filled(one) for one in body["messages"]]})


def _filled(message: Json) -> Json:
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return message | {"content": [part for part in content if part != {"type": "text", "text": ""}]}


@breaks("completions.prompt.characters")
class ReadsToTheFirstNull(Toy):
    def prompt(self, path: str, body: Json) -> Prompt:
        prompt = body.get("prompt")
        cut = prompt.partition("\0")[0] if isinstance(prompt, str) else prompt
        return super().prompt(path, body | {"prompt": cut})


@breaks("completions.prompt.ids")
class AddsATokenToIds(Toy):
    def prompt(self, path: str, body: Json) -> Prompt:
        prompt = super().prompt(path, body)
        return prompt if prompt.text else Prompt((3, *prompt.ids))


@breaks("completions.prompt.ids-continue")
class ReadsIdsBackwards(Toy):
    def prompt(self, path: str, body: Json) -> Prompt:
        prompt = super().prompt(path, body)
        return prompt if prompt.text else Prompt(prompt.ids[::-1])


@breaks(*on_both("stop.at-once"), "completions.prompt.characters")
class HasNullForNoText(Toy):
    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        (choice,) = answer["choices"]
        holder, name = (choice["message"], "content") if path == CHAT else (choice, "text")
        holder[name] = holder[name] or None
        return answer


@breaks("wire.ids.numbered")
class DrawsItsIds(Toy):
    def frame(self, path: str, kind: str) -> Json:
        frame = super().frame(path, kind)
        return frame | {"id": frame["id"].replace("-", "-x")}


@breaks("wire.ids.numbered")
class NumbersEachEndpoint(Toy):
    def frame(self, path: str, kind: str) -> Json:
        frame = super().frame(path, kind)
        return frame | {"id": frame["id"].replace("cmpl-", "cmpl-1" if path == CHAT else "cmpl-")}
