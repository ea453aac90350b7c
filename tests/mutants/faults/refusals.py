"""Requests that are taken or refused wrongly, or refused in another shape."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

from attrs import evolve

from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.model import CONTEXT, Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json, Part, Toy


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
