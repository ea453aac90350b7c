"""Limits of requests for decisions that are minded wrongly, and refusals that say another thing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, evolve

from caldrix_conformance.endpoints import SYSTEMONE
from tests.mutants.faults.registry import breaks
from tests.mutants.toy.kinds import BaseModelToy
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import MODEL, Json
from tests.mutants.toy.systemone import REQUEST, BatchedToy, SystemOneToy


@breaks("systemone.model.unknown")
class DecidesForAnyModel(SystemOneToy):
    def check_model(self, name: str) -> None:
        pass


@breaks("systemone.questions.none", "systemone.questions.too-many")
class CountsNoQuestions(SystemOneToy):
    def check_count(self, questions: int) -> None:
        pass


@breaks("systemone.questions.most")
class CountsQuestionsFromZero(SystemOneToy):
    def check_count(self, questions: int) -> None:
        super().check_count(questions + 1 if questions else 0)


@breaks(
    "systemone.options.least",
    "systemone.options.most",
    "systemone.levels.least",
    "systemone.levels.most",
    "systemone.choice.one",
    "systemone.score.one",
    "systemone.answer.captured",
)
class LimitsAreNarrow(SystemOneToy):
    def limits(self, kind: str) -> tuple[int, int]:
        return super().limits(kind) if kind == "noul" else (2, 25)


@breaks(
    "systemone.unknown.request",
    "systemone.unknown.generation",
    "systemone.unknown.assets",
    "systemone.unknown.images",
    "systemone.unknown.template",
    "systemone.refusal.unknown-first",
)
class TakesAnyFieldOfARequest(SystemOneToy):
    def check_members(self, value: Iterable[str], names: Sequence[str], place: str) -> None:
        if place:
            super().check_members(value, names, place)


@breaks("systemone.unknown.question", "systemone.unknown.criteria")
class LooksForUnknownFieldsOnTopAlone(SystemOneToy):
    def check_members(self, value: Iterable[str], names: Sequence[str], place: str) -> None:
        if not place:
            super().check_members(value, names, place)


TWINS = ("request", "question", "field", "option", "value")


@breaks(*(f"systemone.duplicate.{twin}" for twin in TWINS))
class TakesTwinsInDecisions(SystemOneToy):
    def read(self, content_type: str, raw: bytes) -> Json:
        try:
            return super().read(content_type, raw)
        except Refused as refused:
            if refused.message != "a key twice":
                raise
            return {"model": MODEL, "state": "s", "questions": {"q": {"type": "noul"}}}


@breaks(*(f"systemone.duplicate.{twin}" for twin in TWINS))
class DoesNotSayWhichTwin(SystemOneToy):
    def twin_place(self, place: str) -> str:
        return ""


@breaks("systemone.duplicate.question", "systemone.duplicate.field", "systemone.duplicate.option")
class NamesTwinsByTheirKeysAlone(SystemOneToy):
    def twin_place(self, place: str) -> str:
        return place if place.startswith("state") or "[" in place else place.rpartition(".")[2]


@breaks("systemone.refusal.unknown-first")
class LooksForUnknownFieldsLast(SystemOneToy):
    def check_request(self, body: Json) -> None:
        super().check_request({name: body[name] for name in REQUEST if name in body})
        super().check_request(body)


@breaks("systemone.refusal.first-question")
class BlamesTheLastQuestion(SystemOneToy):
    def check_request(self, body: Json) -> None:
        questions = body.get("questions")
        if isinstance(questions, dict):
            body = body | {"questions": dict(reversed(questions.items()))}
        super().check_request(body)


@breaks("systemone.refusal.length-last")
class ChecksLengthsAsItGoes(SystemOneToy):
    def check_question(self, question: Any, place: str) -> None:
        super().check_question(question, place)
        _, _, name = place.partition(".")
        self.check_sizes({"state": "", "questions": {name: question}})


@breaks("systemone.context.refused", "systemone.context.named")
class TakesAnyLength(SystemOneToy):
    def check_sizes(self, body: Json) -> None:
        pass


@breaks("systemone.context.named")
class BlamesTheState(SystemOneToy):
    def check_sizes(self, body: Json) -> None:
        try:
            super().check_sizes(body)
        except Refused as refused:
            raise Refused(400, refused.message, "state") from None


@breaks("systemone.refusal.object", "systemone.kind.box-printed")
class DecisionErrorsSayMore(SystemOneToy):
    def error(self, refused: Refused) -> Any:
        body = super().error(refused)
        return {"error": body["error"] | {"status": refused.status}}


@breaks("systemone.kind.box-printed")
class HasItsOwnWordsForBoxes(SystemOneToy):
    def error(self, refused: Refused) -> Any:
        message = "no boxes" if "box questions" in refused.message else refused.message
        return super().error(Refused(refused.status, message, refused.param))


@breaks(
    "systemone.kind.required",
    "systemone.kind.type",
    "systemone.kind.unknown",
    "systemone.kind.box",
    "systemone.kind.box-printed",
    "systemone.duplicate.field",
)
class NamesTheQuestionOfAType(SystemOneToy):
    def error(self, refused: Refused) -> Any:
        param = (refused.param or "").removesuffix(".type") or None
        return super().error(Refused(refused.status, refused.message, param))


@breaks("systemone.instructions.type", "systemone.refusal.object")
class AnswersOddInstructionsWith422(SystemOneToy):
    def status(self, refused: Refused) -> int:
        return 422 if (refused.param or "").endswith("instructions") else refused.status


@breaks("systemone.refusal.place", "systemone.unknown.criteria", "systemone.duplicate.option")
class NamesNoPlaceInCriteria(SystemOneToy):
    def error(self, refused: Refused) -> Any:
        head, criteria, _ = (refused.param or "").partition("criteria")
        return super().error(Refused(refused.status, refused.message, head + criteria or None))


@breaks("systemone.numbers.overflow")
class TakesInfinity(SystemOneToy):
    def check_value(self, value: Any, place: str) -> None:
        if not isinstance(value, str | dict | list):
            raise Refused(400, "no text, object or array", place)


@breaks("systemone.route.method")
class DecisionsAreNowhereElse(SystemOneToy):
    def get(self, path: str) -> Json | str:
        if path == SYSTEMONE:
            raise Refused(404, "not here")
        return super().get(path)


@breaks("systemone.body.json", "systemone.body.object")
class ReadsAnything(SystemOneToy):
    def read(self, content_type: str, raw: bytes) -> Json:
        try:
            return super().read(content_type, raw)
        except Refused as refused:
            if not refused.message.startswith("no "):
                raise
            return {"model": MODEL, "state": "s", "questions": {"q": {"type": "noul"}}}


@breaks("systemone.size.most")
@define
class StopsAByteShort(SystemOneToy):
    most_bytes: int = 4 * 1024 * 1024 - 1


@breaks("systemone.size.over")
@define
class TakesMoreBytes(SystemOneToy):
    most_bytes: int = 5 * 1024 * 1024


OF_A_SERVER = ("refused", "param", "words", "before-fields")


@breaks(*(f"systemone.batched.{what}" for what in OF_A_SERVER))
class BatchedIsAServersFault(BatchedToy):
    def refusal(self) -> Refused:
        return evolve(super().refusal(), status=500)


@breaks("systemone.batched.param")
class BatchedNamesAField(BatchedToy):
    def refusal(self) -> Refused:
        return evolve(super().refusal(), param="questions")


@breaks("systemone.batched.words")
class BatchedHasItsOwnWords(BatchedToy):
    def refusal(self) -> Refused:
        return evolve(super().refusal(), message="no decisions with --max-batch 8")


@breaks("systemone.batched.before-fields")
class BatchedLooksAtFieldsFirst(BatchedToy):
    def post(self, path: str, body: Json) -> Any:
        if path == SYSTEMONE and "no_such_field" in body:
            raise Refused(400, "an unknown field", "no_such_field")
        return super().post(path, body)


@breaks("systemone.batched.body-first")
class BatchedReadsNoBody(BatchedToy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return {} if raw.startswith(b"{not") else super().read(content_type, raw)


@breaks(*(f"systemone.untemplated.{what}" for what in OF_A_SERVER))
class UntemplatedIsAServersFault(BaseModelToy):
    def refusal(self) -> Refused:
        return evolve(super().refusal(), status=500)


@breaks("systemone.untemplated.param")
class UntemplatedNamesAField(BaseModelToy):
    def refusal(self) -> Refused:
        return evolve(super().refusal(), param="questions")


@breaks("systemone.untemplated.words")
class UntemplatedHasItsOwnWords(BaseModelToy):
    def refusal(self) -> Refused:
        return evolve(super().refusal(), message="no decisions without a template")


@breaks("systemone.untemplated.before-fields")
class UntemplatedLooksAtFieldsFirst(BaseModelToy):
    def post(self, path: str, body: Json) -> Any:
        if path == SYSTEMONE and "no_such_field" in body:
            raise Refused(400, "an unknown field", "no_such_field")
        return super().post(path, body)


@breaks("systemone.untemplated.body-first")
class UntemplatedReadsNoBody(BaseModelToy):
    def read(self, content_type: str, raw: bytes) -> Json:
        return {} if raw.startswith(b"{not") else super().read(content_type, raw)


@breaks("systemone.refusal.sorted")
class RefusesInItsOwnOrder(SystemOneToy):
    def encode(self, value: Any) -> str:
        text = super().encode(value)
        start = '{"error":{"code":null,'
        return (
            text.replace(start, '{"error":{').replace("}}", ',"code":null}}')
            if start in text
            else text
        )
