"""Records of decided requests that say something else of them."""

from __future__ import annotations

from typing import Any

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.observed_systemone import ObservedSystemOneToy
from tests.mutants.toy.server import Json


@breaks("systemone.record.kept")
class KeepsARecordOfEachQuestion(ObservedSystemOneToy):
    def decide(self, body: Json) -> Json:
        for _ in list(body["questions"])[1:]:
            self.records.appendleft({"id": f"q-{next(self.numbers)}", "route": "/v1/systemone"})
        return super().decide(body)


OF_A_RECORD = ("kept", "counts", "finish-reason", "decode", "sampling")


@breaks(*(f"systemone.record.{what}" for what in OF_A_RECORD), "systemone.answer.id")
class KeepsNoRecordOfDecisions(ObservedSystemOneToy):
    def post(self, path: str, body: Json) -> Any:
        answer = super().post(path, body)
        if path == "/v1/systemone":
            self.records[0]["route"] = "/v1/chat/completions"
        return answer


@breaks("systemone.answer.id")
class NamesNoRecord(ObservedSystemOneToy):
    def answer_id(self) -> str:
        return "systemone"


@breaks("systemone.record.counts")
class CountsAnswersAsTokens(ObservedSystemOneToy):
    def decided(self, record: Json) -> Json:
        return super().decided(record) | {"completion_tokens": 3}


@breaks("systemone.record.finish-reason")
class EndsAtItsLength(ObservedSystemOneToy):
    def decided(self, record: Json) -> Json:
        return super().decided(record) | {"finish_reason": "length"}


@breaks("systemone.record.decode")
class TakesTimeToDecode(ObservedSystemOneToy):
    def decided(self, record: Json) -> Json:
        return super().decided(record) | {"decode_ms": record["prefill_ms"]}


@breaks("systemone.record.sampling")
class TellsOfSettings(ObservedSystemOneToy):
    def decided(self, record: Json) -> Json:
        return super().decided(record) | {"sampling": {"temperature": 0}}
