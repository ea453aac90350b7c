"""Deciders that mind other limits, write other prompts, or count what they did not read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.decider import DeciderToy
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json
from tests.mutants.toy.spelling import Spelled
from tests.mutants.toy.systemone import Row, count


@breaks(
    "decider.choice.least",
    "decider.score.least",
    "decider.score.most",
    "decider.json.description",
    "decider.json.level",
    "decider.index.elsewhere",
    "decider.description.empty",
    "decider.context.all-named",
)
class NarrowDecider(DeciderToy):
    def limits(self, kind: str) -> tuple[int, int]:
        least, most = super().limits(kind)
        return (least, most) if kind == "noul" else (least + 1, most - 1)


@breaks("decider.choice.one", "decider.score.one", "decider.refusal.prefix")
class TakesOne(DeciderToy):
    def limits(self, kind: str) -> tuple[int, int]:
        least, most = super().limits(kind)
        return (least, most) if kind == "noul" else (1, most)


@breaks(
    "decider.choice.too-many",
    "decider.choice.most",
    "decider.labels.two-letter",
    "decider.score.too-many",
    "decider.refusal.prefix",
    "decider.answer.captured",
)
class TakesOneMore(DeciderToy):
    def limits(self, kind: str) -> tuple[int, int]:
        least, most = super().limits(kind)
        return (least, most) if kind == "noul" else (least, most + 1)


@breaks(
    "decider.choice.instructions",
    "decider.score.instructions",
    "decider.noul.bare",
    "decider.noul.empty",
    "decider.refusal.prefix",
)
class DoesWithoutInstructions(DeciderToy):
    def do_without_instructions(self, question: Json, place: str) -> None:
        pass


@breaks("decider.noul.empty")
class TakesEmptyDescriptions(DeciderToy):
    def describes(self, text: Any) -> bool:
        return text is not None


@breaks(
    *("decider.choice.instructions", "decider.score.instructions"),
    *("decider.noul.bare", "decider.noul.empty"),
)
class BlamesCriteriaForInstructions(DeciderToy):
    def do_without_instructions(self, question: Json, place: str) -> None:
        try:
            super().do_without_instructions(question, place)
        except Refused as refused:
            raise Refused(400, refused.message, "questions") from None


@breaks("decider.noul.criteria", "decider.noul.question", "decider.answer.captured")
class NeedsInstructionsForNouls(DeciderToy):
    def do_without_instructions(self, question: Json, place: str) -> None:
        super().do_without_instructions(question | {"criteria": None}, place)


@breaks("decider.refusal.prefix")
class SaysNotThatItIsADecider(DeciderToy):
    def refuse_size(self, message: str, place: str) -> None:
        raise Refused(400, message, place)


@breaks("decider.questions.prefix")
class CountsQuestionsLikeAnyOther(DeciderToy):
    def check_count(self, questions: int) -> None:
        try:
            super().check_count(questions)
        except Refused:
            raise Refused(400, "1 to 64 questions", "questions") from None


@breaks("decider.state.counts", "decider.refusal.unprefixed")
class SaysItIsADeciderTooOften(DeciderToy):
    def refuse_state(self, tokens: int) -> None:
        raise Refused(400, "this model is a decider: the state is too long", "state")


@breaks(
    "decider.state.cap",
    "decider.state.counts",
    "decider.refusal.unprefixed",
    "decider.context.all",
    "decider.context.all-named",
)
class CutsTheState(DeciderToy):
    def state_text(self, state: Any) -> str:
        return super().state_text(state)[:1000]


@breaks("decider.context.counts")
class TellsNoCountsOfPrompts(DeciderToy):
    def check_sizes(self, body: Json) -> None:
        try:
            super().check_sizes(body)
        except Refused as refused:
            message = "the prompt is too long" if refused.param != "state" else refused.message
            raise Refused(400, message, refused.param) from None


@breaks("decider.context.all", "decider.context.all-named")
class ReadsAnyNumberOfPrompts(DeciderToy):
    def refuse_together(self, message: str) -> None:
        pass


@breaks("decider.context.all-named")
class BlamesNobodyForManyPrompts(DeciderToy):
    def refuse_together(self, message: str) -> None:
        raise Refused(400, message)


@breaks("decider.context.all-named")
class SaysTooMuch(DeciderToy):
    def refuse_together(self, message: str) -> None:
        raise Refused(400, "too much", "questions")


@breaks("decider.labels.two-letter", "decider.answer.captured")
class RunsOutOfLetters(DeciderToy):
    def probabilities(self, state: Any, question: Json) -> Sequence[float]:
        read = super().probabilities(state, question)
        return [*read[:26], *(0.0 for _ in read[26:])]


@breaks("decider.choice.most")
class TakesFewerThanItSays(DeciderToy):
    def check_criteria(self, kind: str, criteria: Any, place: str) -> None:
        super().check_criteria(kind, criteria, place)
        if criteria is not None and len(criteria) > 200:
            raise Refused(400, "too many", place)


VALUES = ("state", "instructions", "description", "level", "criterion", "numbers")
INDEXES = ("eight", "seven", "nested", "values", "own", "elsewhere")


@breaks(*(f"decider.json.{v}" for v in VALUES), *(f"decider.index.{i}" for i in INDEXES))
class WritesCompactJson(DeciderToy):
    separators: ClassVar[tuple[str, str]] = (",", ":")


@breaks("decider.json.non-ascii")
class EscapesForADecider(DeciderToy):
    def quoted(self, value: Any) -> str:
        return json.dumps(value)


@breaks("decider.json.numbers")
class KeepsDigitsForADecider(DeciderToy):
    def number(self, value: Spelled) -> str:
        return value.text


@breaks("decider.index.eight", "decider.index.nested", "decider.index.values", "decider.index.own")
class IndexesFromNine(DeciderToy):
    def least_indexed(self) -> int:
        return 9


@breaks("decider.index.seven")
class IndexesFromSeven(DeciderToy):
    def least_indexed(self) -> int:
        return 7


@breaks("decider.index.nested")
class IndexesTheTopAlone(DeciderToy):
    def with_indexes(self, value: Any) -> Any:
        return super().with_indexes(value) if isinstance(value, list) else value


@breaks("decider.index.values")
class IndexesObjectsAlone(DeciderToy):
    def with_indexes(self, value: Any) -> Any:
        is_list = isinstance(value, list)
        return value if is_list and "a" in value else super().with_indexes(value)


@breaks("decider.index.own")
class OverwritesIndexes(DeciderToy):
    def with_indexes(self, value: Any) -> Any:
        found = super().with_indexes(value)
        if isinstance(found, list):
            for index, item in enumerate(found):
                if isinstance(item, dict) and "_index" in item:
                    item["_index"] = index
        return found


@breaks("decider.index.elsewhere")
class IndexesEverything(DeciderToy):
    def text(self, value: Any) -> str:
        return super().text(self.with_indexes(value))


@breaks("decider.answer.unrounded", "decider.answer.captured")
class RoundsToFourDigits(DeciderToy):
    def decide(self, body: Json) -> Json:
        answer: Json = json.loads(json.dumps(super().decide(body)), parse_float=_rounded)
        return answer


def _rounded(digits: str) -> float:
    return round(float(digits), 4)


@breaks("decider.isolated.share")
class SquaresTheLevels(DeciderToy):
    def probabilities(self, state: Any, question: Json) -> Sequence[float]:
        read = super().probabilities(state, question)
        if question["type"] != "score":
            return read
        squares = [p * p for p in read]
        return [p / sum(squares) for p in squares]


@breaks("decider.noul.question", "decider.description.empty")
class WritesNothingAsItIs(DeciderToy):
    def rows(self, state: Any, question: Json) -> list[Row]:
        return super().rows(state, {"instructions": "null", **question})

    def options(self, question: Json) -> list[str]:
        if question["type"] != "choice":
            return super().options(question)
        texts = {
            name: "null" if text is None else text for name, text in question["criteria"].items()
        }
        return super().options(question | {"criteria": texts})


@breaks("decider.isolated.number")
class ReadsNumbersOfLevels(DeciderToy):
    def without_number(self, level: str) -> str:
        return level


@breaks("decider.usage.once")
class CountsTheStateEachTime(DeciderToy):
    def input_tokens(self, rows: Sequence[Row]) -> int:
        return sum(count(row.context) + count(row.piece) for row in rows)


@breaks("decider.usage.sum")
class CountsTheFirstQuestion(DeciderToy):
    def input_tokens(self, rows: Sequence[Row]) -> int:
        return count(rows[0].context) + count(rows[0].piece)
