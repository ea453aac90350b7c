"""Requests that are taken or refused wrongly, or refused in another shape."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from tests.mutants.faults.registry import FAULTS, breaks, on_both
from tests.mutants.toy.model import CONTEXT, Prompt
from tests.mutants.toy.rules import NEUTRAL, Refused
from tests.mutants.toy.server import CHAT, MODEL, Json, Part, Toy


def _lax(field: str) -> type[Toy]:
    class Lax(Toy):
        def check(self, path: str, body: Json) -> None:
            super().check(path, {name: value for name, value in body.items() if name != field})

    Lax.__name__ = f"Takes_any_{field}"
    return Lax


FAULTS |= {
    _lax("tools"): frozenset({"unimplemented.tools.refused"}),
    _lax("n"): frozenset({"unimplemented.n.refused"}),
    _lax("logprobs"): frozenset({"unimplemented.logprobs.refused"}),
    _lax("ignore_eos"): frozenset({"completions.ignore-eos.type"}),
}


def _passing_over(*fields: str) -> type[Toy]:
    """Values that must be refused are passed over, as if the fields were absent."""

    class PassingOver(Toy):
        def post(self, path: str, body: Json) -> Any:
            return super().post(path, {n: v for n, v in body.items() if self.takes(n, v)})

        def takes(self, name: str, value: Any) -> bool:
            try:
                return name not in fields or self.rules[name](value)
            except Refused:
                return False

    PassingOver.__name__ = f"Passes_over_{fields[0]}"
    return PassingOver


SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def _named(area: str, fields: Iterable[str], what: str) -> list[str]:
    return [f"{area}.{field.replace('_', '-')}.{what}" for field in fields]


FAULTS |= {
    _passing_over(*NEUTRAL): frozenset(_named("unimplemented", NEUTRAL, "refused")),
    _passing_over(*SAMPLING): frozenset(
        [*_named("sampling", SAMPLING, "refuses"), "sampling.top-p.printed"]
    ),
    _passing_over("max_tokens", "max_completion_tokens"): frozenset(
        on_both("max-tokens.least", "max-tokens.type")
    ),
    _passing_over("stop"): frozenset(
        on_both("stop.five", "stop.too-long", "stop.empty", "stop.type")
    ),
    _passing_over("stream", "stream_options"): frozenset(
        on_both("streaming.field.type", "streaming.options.type", "streaming.options.usage-type")
    ),
    _passing_over("return_token_ids"): frozenset({"fields.token-ids.type"}),
}


def _refusing(name: str, values: Mapping[str, Sequence[Any]]) -> type[Toy]:
    """Values that must be taken are refused."""

    class Refusing(Toy):
        def check(self, path: str, body: Json) -> None:
            super().check(path, body)
            for field, refused in values.items():
                if field in body and body[field] in refused:
                    raise Refused(400, "not taken", field)

    Refusing.__name__ = f"Refuses_{name}"
    return Refusing


FAULTS |= {
    _refusing("neutral_values", {field: [*values] for field, values in NEUTRAL.items()}): frozenset(
        _named("unimplemented", NEUTRAL, "neutral")
    ),
    _refusing("null", {"response_format": [None]}): frozenset(
        {"unimplemented.response-format.neutral"}
    ),
    _refusing(
        "some_numbers",
        {
            "temperature": [1e308],
            "top_k": [50],
            "top_p": [0.5],
            "min_p": [0.5],
            "repetition_penalty": [1.3],
            "seed": [2**64],
        },
    ): frozenset(_named("sampling", SAMPLING, "takes")),
    _refusing("user", {"user": ["someone"]}): frozenset({"fields.user"}),
    _refusing("large_caps", {"max_tokens": [10**9]}): frozenset(
        on_both("max-tokens.beyond-context")
    ),
    _refusing("null_caps", {"max_tokens": [None]}): frozenset(
        on_both("max-tokens.null", "max-tokens.absent")
    ),
    _refusing("no_stops", {"stop": [[]]}): frozenset(on_both("stop.none")),
    _refusing("null_flags", {"return_token_ids": [None]}): frozenset({"fields.token-ids.null"}),
    _refusing("no_options", {"stream_options": [{}]}): frozenset(
        on_both("streaming.options.empty")
    ),
    _refusing("null_prompts", {"messages": [None], "prompt": [None]}): frozenset(
        {"chat.prompt.null", "completions.messages.null"}
    ),
}


@breaks(*on_both("max-tokens.contradiction"))
class TakesTwoCaps(Toy):
    def check(self, path: str, body: Json) -> None:
        super().check(path, {name: v for name, v in body.items() if v != 3})


@breaks(*on_both("max-tokens.agreement"))
class RefusesTwoNamesOfTheCap(Toy):
    def post(self, path: str, body: Json) -> Any:
        both = body.get("max_tokens") and body.get("max_completion_tokens")
        return super().post(path, body | ({"max_completion_tokens": 3} if both else {}))


@breaks(*on_both("streaming.options.alone"))
class TakesOptionsAlone(Toy):
    def check(self, path: str, body: Json) -> None:
        alone = not body.get("stream")
        super().check(path, body | ({"stream_options": None} if alone else {}))


@breaks(*on_both("streaming.options.unnamed"))
class RefusesUnnamedOptions(Toy):
    def check(self, path: str, body: Json) -> None:
        super().check(path, body)
        if "x_no_such_option" in (body.get("stream_options") or {}):
            raise Refused(400, "not known", "stream_options")


@breaks(*on_both("stop.four"))
class TakesLittleOfStops(Toy):
    def check(self, path: str, body: Json) -> None:
        super().check(path, body)
        if sum(map(len, self.stops(body))) > 512:
            raise Refused(400, "too much", "stop")


@breaks(*on_both("stop.shortest"))
class PassesOverLetters(Toy):
    def stops(self, body: Json) -> list[str]:
        stops = super().stops(body)
        return [] if len(stops) == 1 and len(stops[0]) == 1 and stops[0].isascii() else stops


@breaks(*on_both("model.required", "model.type"))
class NeedsNoModel(Toy):
    def check(self, path: str, body: Json) -> None:
        named = isinstance(body.get("model"), str)
        super().check(path, body if named else body | {"model": MODEL})


@breaks(*on_both("model.exact"))
class ReadsNamesLoosely(Toy):
    def check_model(self, name: str) -> None:
        super().check_model(
            MODEL if MODEL.lower().startswith(name.strip().lower() or "-") else name
        )


@breaks(
    *(f"chat.messages.{what}" for what in ("required", "type", "none", "too-many", "item")),
    *(f"chat.messages.{what}" for what in ("role", "tools")),
    *(f"chat.content.{what}" for what in ("type", "required", "null", "none", "part-type")),
    "chat.content.part-malformed",
)
class TakesAnyMessages(Toy):
    def messages(self, body: Json) -> list[str]:
        try:
            return super().messages(body)
        except Refused as refused:
            if "text only" in refused.message:
                raise
            return ["Hi"]


@breaks("chat.content.image-refused")
class NamesTheImage(Toy):
    def error(self, refused: Refused) -> Any:
        inside = ".image_url" if "text only" in refused.message else ""
        param = f"{refused.param}{inside}" if refused.param else None
        return super().error(Refused(refused.status, refused.message, param))


@breaks("chat.content.image-words")
class HasItsOwnWordsForImages(Toy):
    def error(self, refused: Refused) -> Any:
        message = refused.message.replace("text only", "no images")
        return super().error(Refused(refused.status, message, refused.param))


@breaks("chat.content.empty", "chat.messages.one")
class RefusesShortMessages(Toy):
    def messages(self, body: Json) -> list[str]:
        texts = super().messages(body)
        if len(texts) == 1 and len(texts[0]) < 2:
            raise Refused(400, "too short", "messages")
        return texts


@breaks("chat.messages.order")
class FailsOnUnknownRoles(Toy):
    def messages(self, body: Json) -> list[str]:
        texts = super().messages(body)
        if {message["role"] for message in body["messages"]} - {"system", "user", "assistant"}:
            raise Refused(500, "the template failed")
        return texts


@breaks("chat.messages.unnamed")
class RefusesUnnamedMembers(Toy):
    def messages(self, body: Json) -> list[str]:
        texts = super().messages(body)
        if any("x_no_such_member" in message for message in body["messages"]):
            raise Refused(400, "not known", "messages")
        return texts


@breaks("chat.content.roles")
class TakesPartsOfUsersAlone(Toy):
    def messages(self, body: Json) -> list[str]:
        texts = super().messages(body)
        for message in body["messages"]:
            if isinstance(message["content"], list) and message["role"] != "user":
                raise Refused(400, "no parts here", "messages")
        return texts


@breaks("chat.prompt.refused", "completions.messages.refused")
class TakesTheOtherPrompt(Toy):
    def check(self, path: str, body: Json) -> None:
        other = "prompt" if path == CHAT else "messages"
        super().check(path, body | {other: None})


@breaks(
    *(f"completions.prompt.{what}" for what in ("required", "type", "empty", "batch")),
    *(f"completions.prompt.{what}" for what in ("id-type", "id-range")),
)
class TakesAnyPrompt(Toy):
    def prompt(self, path: str, body: Json) -> Prompt:
        try:
            return super().prompt(path, body)
        except Refused as refused:
            if path == CHAT or refused.param == "messages":
                raise
            return Prompt.of_text("Hi")


@breaks("fields.integers")
class TakesWholeFloats(Toy):
    def post(self, path: str, body: Json) -> Any:
        whole = {n: int(v) for n, v in body.items() if isinstance(v, float) and v == 7}
        return super().post(path, body | whole)


@breaks("errors.prompt.streamed")
class RefusesLongPromptsInEvents(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        try:
            yield from super().events(path, body)
        except Refused as refused:
            if refused.param != "prompt":
                raise
            yield self.encode(self.error(refused))


@breaks("errors.param.none")
class NamesTheBody(Toy):
    def error(self, refused: Refused) -> Any:
        return super().error(Refused(refused.status, refused.message, refused.param or "body"))


@breaks("errors.message.short")
class RepeatsWhatItRefuses(Toy):
    def check_model(self, name: str) -> None:
        if name != MODEL:
            raise Refused(400, f"{MODEL} is served, not {name}", "model")


@breaks("fields.unnamed")
class RefusesTheUnknown(Toy):
    def check(self, path: str, body: Json) -> None:
        super().check(path, body)
        if "x_no_such_field" in body:
            raise Refused(400, "unknown field", "x_no_such_field")


@breaks("fields.other-apis")
class Echoes(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        if body.get("echo"):
            yield Part(prompt.text, [])
        yield from super().parts(prompt, body)


@breaks("sampling.min-p.refuses")
class AnswersWithAnotherStatus(Toy):
    def status(self, refused: Refused) -> int:
        return 422 if refused.param == "min_p" else refused.status


@breaks("chat.messages.role")
class NamesAnotherField(Toy):
    def error(self, refused: Refused) -> Any:
        param = (refused.param or "").removesuffix(".role") or None
        return super().error(Refused(refused.status, refused.message, param))


@breaks("sampling.top-p.printed")
class HasItsOwnWords(Toy):
    def error(self, refused: Refused) -> Any:
        message = "out of range" if refused.param == "top_p" else refused.message
        return super().error(Refused(refused.status, message, refused.param))


@breaks("errors.route.unknown", "errors.route.exact", "errors.route.anthropic")
class ErrorIsAString(Toy):
    def error(self, refused: Refused) -> Any:
        return {"error": refused.message} if refused.status == 404 else super().error(refused)


@breaks("errors.object.exact", "sampling.top-p.printed")
class SaysMoreOfErrors(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return body | {"status": refused.status}


@breaks("errors.type", "sampling.top-p.printed")
class HasItsOwnErrorTypes(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return {"error": body["error"] | {"type": "BadRequest"}}


@breaks("errors.code.null", "sampling.top-p.printed")
class HasItsOwnErrorCodes(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return {"error": body["error"] | {"code": "bad_request"}}


@breaks(*(f"errors.prompt.{what}" for what in ("too-long", "param", "sizes", "streamed")))
class ShortensLongPrompts(Toy):
    def fit(self, prompt: Prompt, param: str) -> Prompt:
        return evolve(prompt, ids=prompt.ids[-CONTEXT // 2 :])


@breaks("errors.prompt.sizes")
class TellsNoSizes(Toy):
    def fit(self, prompt: Prompt, param: str) -> Prompt:
        try:
            return super().fit(prompt, param)
        except Refused:
            raise Refused(400, "the prompt is too long", param) from None


@breaks("models.one", "models.exact", "models.shape", "models.printed")
class ListsAnother(Toy):
    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        if isinstance(answer, dict):
            answer["data"].append({"id": "another", "object": "model"})
        return answer


@breaks("health.healthz", "health.health")
class HealthIsJson(Toy):
    def get(self, path: str) -> Json | str:
        return {"status": "ok"} if "health" in path else super().get(path)


@breaks("chat.response.printed", "completions.response.printed", "streaming.chunk.printed")
class AnotherModel(Toy):
    def decode(self, decoder: codecs.IncrementalDecoder, token: int) -> str:
        return super().decode(decoder, token).upper()
