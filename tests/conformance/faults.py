"""Ways to be wrong: each a toy server that breaks a promise, and the clauses that must show it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from tests.conformance import toy_rules
from tests.conformance.toy_model import CONTEXT, EMOJI, TOKENS, Prompt, Sampling
from tests.conformance.toy_rules import Refused
from tests.conformance.toy_server import CHAT, COMPLETIONS, Json, Part, Toy

FAULTS: dict[type[Toy], frozenset[str]] = {}
"""Each broken server, with exactly the clauses that it breaks."""


def breaks(*clause_ids: str) -> Callable[[type[Toy]], type[Toy]]:
    """Enter a toy in the table of faults."""

    def enter(toy: type[Toy]) -> type[Toy]:
        FAULTS[toy] = frozenset(clause_ids)
        return toy

    return enter


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


# Caps and stop strings.


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


# Streams.


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


# Sampling.


@breaks("sampling.default.greedy")
class SamplesByDefault(Toy):
    def sampling(self, body: Json) -> Sampling:
        hot = body.get("temperature") is None
        return evolve(super().sampling(body), **({"temperature": 1} if hot else {}))


@breaks("sampling.seed.same", "sampling.seed.streamed", "sampling.endpoints", "sampling.top-k.all")
class IgnoresTheSeed(Toy):
    def sampling(self, body: Json) -> Sampling:
        return evolve(super().sampling(body), seed=None)


@breaks("sampling.seed.fresh")
class AlwaysDrawsTheSame(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, seed=sampling.seed or 1)


@breaks("sampling.top-k.all")
class KeepsFewByDefault(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, top_k=sampling.top_k or 2)


@breaks("sampling.temperature.spreads", "sampling.seed.fresh", "sampling.endpoints")
class AlwaysGreedy(Toy):
    def sampling(self, body: Json) -> Sampling:
        return evolve(super().sampling(body), temperature=0)


def _ignoring(field: str, **value: Any) -> type[Toy]:
    class Ignoring(Toy):
        def sampling(self, body: Json) -> Sampling:
            return evolve(super().sampling(body), **value)

    Ignoring.__name__ = f"Ignores_{field}"
    return Ignoring


FAULTS |= {
    _ignoring("top_k", top_k=0): frozenset({"sampling.top-k.one"}),
    _ignoring("top_p", top_p=1): frozenset({"sampling.top-p.least"}),
    _ignoring("min_p", min_p=0): frozenset({"sampling.min-p.one"}),
    _ignoring("penalty", repetition_penalty=1): frozenset({"sampling.repetition-penalty.acts"}),
}


# Refusals.


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


@breaks("unimplemented.tool-choice.neutral")
class RefusesANeutralValue(Toy):
    def check(self, path: str, body: Json) -> None:
        super().check(path, body)
        if body.get("tool_choice") == "none":
            raise Refused(400, "not implemented", "tool_choice")


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


@breaks("errors.route.unknown")
class ErrorIsAString(Toy):
    def error(self, refused: Refused) -> Any:
        return {"error": refused.message} if refused.status == 404 else super().error(refused)


@breaks("errors.object", "sampling.top-p.printed")
class SaysMoreOfErrors(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return body | {"status": refused.status}


@breaks("errors.type", "sampling.top-p.printed")
class HasItsOwnErrorTypes(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return {"error": body["error"] | {"type": "BadRequest"}}


@breaks("errors.prompt.too-long", "errors.prompt.param", "errors.prompt.sizes")
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


@breaks("errors.body.media-type")
class ReadsLoosely(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return super().read("application/json", raw)


@breaks("errors.body.duplicate")
class TakesTwins(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return super().read(content_type, raw.replace(b', "user": "x", "max_tokens": 2', b""))


@breaks("errors.body.nested")
class BreaksOnNesting(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        if b"[[[[" in raw:
            raise ConnectionError("as if a stack had overflowed")
        return super().read(content_type, raw)


@breaks("server.host.foreign")
class AnswersAnyHost(Toy):
    def check_host(self, host: str) -> None:
        pass


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
