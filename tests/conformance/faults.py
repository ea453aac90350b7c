"""Ways to be wrong: each a toy server with one promise broken, and the clauses that must show it."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator
from typing import Any

from attrs import evolve

from tests.conformance import toy_rules
from tests.conformance.toy_model import CONTEXT, TOKENS, Prompt, Sampling
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


@breaks("chat.response.exact", "completions.response.exact")
class SaysMore(Toy):
    def whole(self, path: str, body: Json) -> Json:
        return super().whole(path, body) | {"system_fingerprint": "fp"}


@breaks("chat.usage.total", "completions.usage", "chat.response.printed")
class CountsWrong(Toy):
    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        usage = super().usage(prompt, ids)
        return usage | {"total_tokens": usage["total_tokens"] + 1}


@breaks("completions.response.continues", "completions.response.printed")
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


@breaks("chat.messages.most", "chat.messages.too-many")
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
        return min(super().cap(body), 300) if "max_tokens" in body else 16


@breaks(
    "chat.max-tokens.caps",
    "chat.max-tokens.other-name",
    "completions.max-tokens.as-chat",
    "completions.ignore-eos.runs-on",
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


@breaks("streaming.stop.hidden", "streaming.stop.released")
class StreamsTheStop(Toy):
    def ready(self, text: str, stops: list[str]) -> str:
        return text


@breaks("chat.stop.split-over-tokens")
class LooksForStopsInSingleTokens(Toy):
    def stops(self, body: Json) -> list[str]:
        return [stop for stop in super().stops(body) if any(stop in str(t) for t in TOKENS)]


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


@breaks("streaming.usage.unasked")
class StreamsUsageUnasked(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return super().events(path, body | {"stream_options": {"include_usage": True}})


@breaks("streaming.done")
class NeverDone(Toy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return (event for event in super().events(path, body) if event != "[DONE]")


@breaks("streaming.chunk.role")
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


@breaks("streaming.chunk.as-decoded")
class StreamsAllAtOnce(Toy):
    def parts(self, prompt: Prompt, body: Json) -> Iterator[Part | str]:
        *parts, reason = super().parts(prompt, body)
        texts = [part for part in parts if isinstance(part, Part)]
        ids = [token for part in texts for token in part.ids]
        yield Part("".join(part.text for part in texts), ids)
        yield reason


@breaks("streaming.final.reason")
class AlwaysHasAReason(Toy):
    def chunk(self, path: str, text: str, reason: str | None, ids: list[int], body: Json) -> Json:
        return super().chunk(path, text, reason or "length", ids, body)


@breaks("streaming.refusal")
class StreamsItsRefusals(Toy):
    def error(self, refused: Refused) -> Any:
        return super().error(refused)

    def status(self, refused: Refused) -> int:
        return 200 if refused.param == "max_tokens" else refused.status


@breaks("streaming.text.characters")
class CutsCharacters(Toy):
    def decode(self, decoder: codecs.IncrementalDecoder, token: int) -> str:
        return TOKENS[token].decode("utf-8", "replace")


# Sampling.


@breaks("sampling.default.greedy")
class SamplesByDefault(Toy):
    def sampling(self, body: Json) -> Sampling:
        return super().sampling({"temperature": 1} | body)


@breaks("sampling.seed.same")
class IgnoresTheSeed(Toy):
    def sampling(self, body: Json) -> Sampling:
        return evolve(super().sampling(body), seed=None)


@breaks("sampling.seed.fresh")
class AlwaysDrawsTheSame(Toy):
    def sampling(self, body: Json) -> Sampling:
        sampling = super().sampling(body)
        return evolve(sampling, seed=sampling.seed or 1)


@breaks("sampling.temperature.spreads")
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
        return super().error(Refused(refused.status, "out of range", refused.param))


@breaks("errors.route.unknown")
class ErrorIsAString(Toy):
    def error(self, refused: Refused) -> Any:
        return {"error": refused.message} if refused.status == 404 else super().error(refused)


@breaks("errors.object")
class SaysMoreOfErrors(Toy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return body | {"status": refused.status}


@breaks("errors.type")
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


@breaks("errors.body.duplicate", "errors.body.constants")
class ReadsLoosely(Toy):
    def read(self, content_type: str, raw: bytes) -> Json:
        try:
            return super().read(content_type, raw)
        except Refused:
            value = json.loads(raw.replace(b"NaN", b"null").replace(b"Infinity", b"null"))
            if isinstance(value, dict) and len(raw) < 10_000 and rb"\ud83d" not in raw:
                return value
            raise


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


@breaks("models.one", "models.exact")
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
