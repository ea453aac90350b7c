"""Answers to questions that are reckoned or written wrongly."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from attrs import define, evolve, field

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.server import Json
from tests.mutants.toy.spelling import Spelled
from tests.mutants.toy.systemone import Row, SystemOneToy

PRINTED = "systemone.answer.printed"
CAPTURED = "systemone.answer.captured"


class Rewrites(SystemOneToy):
    """A server whose every answer is rewritten."""

    def decide(self, body: Json) -> Json:
        return self.rewrite(super().decide(body))

    def rewrite(self, answer: Json) -> Json:
        raise NotImplementedError


@breaks("systemone.answer.exact", "systemone.answer.order", PRINTED, CAPTURED)
class DecisionsSayMore(Rewrites):
    def rewrite(self, answer: Json) -> Json:
        return answer | {"object": "decisions"}


@breaks(
    "systemone.answer.members",
    "systemone.answer.exact",
    "systemone.answer.order",
    "systemone.answer.model",
    PRINTED,
    CAPTURED,
)
class NamesNoModel(Rewrites):
    def rewrite(self, answer: Json) -> Json:
        return {name: answer[name] for name in ("answers", "usage")}


@breaks("systemone.answer.order", CAPTURED)
class SortsMembers(Rewrites):
    def rewrite(self, answer: Json) -> Json:
        return dict(sorted(answer.items()))


@breaks("systemone.answer.media-type", PRINTED, CAPTURED, "systemone.answer.exact")
class SaysItIsText(SystemOneToy):
    answer_media_type: ClassVar[str] = "text/plain"


@breaks("systemone.answer.compact")
class SpacedDecisions(SystemOneToy):
    def spell(self, value: Any) -> str:
        return super().spell(value).replace('"usage":{', '"usage": {')


@breaks("systemone.answer.model", PRINTED, CAPTURED)
class NamesAnotherModel(Rewrites):
    def rewrite(self, answer: Json) -> Json:
        return answer | {"model": "another"}


@breaks(
    "systemone.answer.names",
    "systemone.answer.names-order",
    "systemone.answer.any-name",
    "systemone.questions.most",
    PRINTED,
    CAPTURED,
    "systemone.answer.exact",
)
class AnswersMore(Rewrites):
    def rewrite(self, answer: Json) -> Json:
        first = next(iter(answer["answers"].values()))
        return answer | {"answers": answer["answers"] | {"all": first}}


@breaks("systemone.answer.names-order", CAPTURED)
class AnswersInAnotherOrder(Rewrites):
    def rewrite(self, answer: Json) -> Json:
        return answer | {"answers": dict(sorted(answer["answers"].items()))}


@breaks("systemone.answer.any-name", "systemone.choice.any-option", CAPTURED)
class NamesAreAscii(SystemOneToy):
    def spell(self, value: Any) -> str:
        if isinstance(value, dict):
            value = {name.encode("ascii", "replace").decode(): v for name, v in value.items()}
        return super().spell(value)


@breaks("systemone.answer.type", PRINTED, CAPTURED)
class CallsANoulYesOrNo(SystemOneToy):
    def answer(self, state: Any, question: Json) -> Json:
        answer = super().answer(state, question)
        return answer | {"type": "yes_no"} if answer["type"] == "noul" else answer


@breaks("systemone.answer.alone")
class LooksAtTheOtherQuestions(SystemOneToy):
    def decide(self, body: Json) -> Json:
        first = next(iter(body["questions"].values()))
        asked = {
            name: question | {"instructions": [first["instructions"], question["instructions"]]}
            if len(body["questions"]) == 4
            else question
            for name, question in body["questions"].items()
        }
        answers = super().decide(body | {"questions": asked})["answers"]
        return super().decide(body) | {"answers": answers}


@breaks("systemone.answer.repeated")
@define
class DrawsByLot(SystemOneToy):
    draws: Iterator[int] = field(factory=lambda: itertools.count(1))

    def decide(self, body: Json) -> Json:
        drawn = next(self.draws) if len(body["questions"]) == 4 else 0
        answer = super().decide(body)
        if drawn > 1:
            answer["answers"]["late"]["noul"] /= drawn
        return answer


@breaks(PRINTED)
class AnotherModelsReadings(SystemOneToy):
    def rows(self, state: Any, question: Json) -> list[Row]:
        rows = super().rows(state, question)
        return [evolve(row, probabilities=None) for row in rows]


class Counts(Rewrites):
    """A server whose usage is rewritten."""

    def rewrite(self, answer: Json) -> Json:
        return answer | {"usage": answer["usage"] | self.recount(answer["usage"])}

    def recount(self, usage: Json) -> Json:
        raise NotImplementedError


@breaks("systemone.usage.output", PRINTED, CAPTURED)
class CountsItsLabels(Counts):
    def recount(self, usage: Json) -> Json:
        return {"output_tokens": 1}


@breaks("systemone.usage.sum", PRINTED)
class CountsAHeadOnce(Counts):
    def recount(self, usage: Json) -> Json:
        return {"input_tokens": usage["input_tokens"] + 1}


@breaks(
    "systemone.usage.input",
    "systemone.usage.state",
    "systemone.choice.described",
    "systemone.noul.described",
    PRINTED,
    CAPTURED,
    "systemone.special",
)
class CountsNothing(Counts):
    def recount(self, usage: Json) -> Json:
        return {"input_tokens": 0}


@breaks("systemone.usage.state", "systemone.special")
class CountsNoState(SystemOneToy):
    def row_tokens(self, row: Row) -> int:
        return row.counted or len(row.piece.partition("\nQuestion")[2].split())


@breaks(
    "systemone.choice.options",
    "systemone.choice.any-option",
    "systemone.choice.order",
    "systemone.choice.sum",
    "systemone.choice.confidence",
    PRINTED,
    CAPTURED,
    "systemone.answer.exact",
)
class GivesTheBestAlone(SystemOneToy):
    def chosen(self, names: Sequence[str], probabilities: Sequence[float]) -> Json:
        answer = super().chosen(names, probabilities)
        chosen = answer["choice"]
        return answer | {"probabilities": {chosen: answer["probabilities"][chosen]}}


@breaks("systemone.choice.order", CAPTURED)
class SortsOptions(SystemOneToy):
    def chosen(self, names: Sequence[str], probabilities: Sequence[float]) -> Json:
        answer = super().chosen(names, probabilities)
        return answer | {"probabilities": dict(sorted(answer["probabilities"].items()))}


@breaks(
    "systemone.choice.sum",
    "systemone.score.sum",
    "systemone.choice.one",
    "systemone.score.one",
    CAPTURED,
)
class SharesWithOtherTokens(SystemOneToy):
    def softmax(self, logits: Sequence[float]) -> list[float]:
        return [0.9 * p for p in super().softmax(logits)]


@breaks("systemone.choice.best", "systemone.choice.tie", PRINTED, CAPTURED)
class ChoosesTheWorst(SystemOneToy):
    def chosen(self, names: Sequence[str], probabilities: Sequence[float]) -> Json:
        answer = super().chosen(names, probabilities)
        return answer | {"choice": names[probabilities.index(min(probabilities))]}


@breaks("systemone.choice.tie")
class ChoosesTheLastOfATie(SystemOneToy):
    def chosen(self, names: Sequence[str], probabilities: Sequence[float]) -> Json:
        answer = super().chosen(names, probabilities)
        best = [n for n, p in zip(names, probabilities, strict=True) if p == max(probabilities)]
        return answer | {"choice": best[-1]}


@breaks("systemone.choice.confidence", CAPTURED)
class IsSureOfWhatIsBest(SystemOneToy):
    def choice_confidence(self, probabilities: Sequence[float]) -> float:
        return max(probabilities)


@breaks(
    *("systemone.choice.confidence", "systemone.score.confidence"),
    *("systemone.score.spread", "systemone.score.tie"),
    CAPTURED,
)
class NormalisesBeforeItReckons(SystemOneToy):
    def choice_confidence(self, probabilities: Sequence[float]) -> float:
        return super().choice_confidence(normalised(probabilities))

    def score_confidence(self, probabilities: Sequence[float]) -> float:
        return super().score_confidence(normalised(probabilities))


@breaks("systemone.score.expected", CAPTURED, "systemone.score.unclipped")
class NormalisesBeforeItScores(SystemOneToy):
    def mean(self, probabilities: Sequence[float]) -> float:
        return super().mean(normalised(probabilities))


def normalised(probabilities: Sequence[float]) -> Sequence[float]:
    return [p / sum(probabilities) for p in probabilities]


@breaks("systemone.choice.one", "systemone.score.one", CAPTURED)
class IsNeverSureOfOne(SystemOneToy):
    def choice_confidence(self, probabilities: Sequence[float]) -> float:
        return super().choice_confidence(probabilities) if len(probabilities) > 1 else 0.0

    def score_confidence(self, probabilities: Sequence[float]) -> float:
        return super().score_confidence(probabilities) if len(probabilities) > 1 else 0.0


@breaks("systemone.score.expected", PRINTED, CAPTURED, "systemone.score.unclipped")
class ScoresTheLikeliest(SystemOneToy):
    def mean(self, probabilities: Sequence[float]) -> float:
        return float(self.best(probabilities))


@breaks(
    *("systemone.score.confidence", "systemone.score.spread", "systemone.score.tie"),
    PRINTED,
    CAPTURED,
)
class IsAsSureOfAScore(SystemOneToy):
    def score_confidence(self, probabilities: Sequence[float]) -> float:
        return self.choice_confidence(probabilities)


@breaks("systemone.score.tie")
class SpreadsAroundTheLastOfATie(SystemOneToy):
    def score_confidence(self, probabilities: Sequence[float]) -> float:
        return super().score_confidence(probabilities[::-1])


@breaks(
    "systemone.score.indexes",
    "systemone.score.expected",
    "systemone.score.confidence",
    "systemone.score.spread",
    "systemone.score.tie",
    "systemone.score.one",
    PRINTED,
    CAPTURED,
    "systemone.answer.exact",
    "systemone.score.unclipped",
)
class CountsLevelsFromOne(SystemOneToy):
    def scored(self, levels: Sequence[Any], probabilities: Sequence[float]) -> Json:
        answer = super().scored(levels, probabilities)
        named = {str(index): p for index, p in enumerate(probabilities, 1)}
        return answer | {"probabilities": named}


@breaks(
    "systemone.legend.indexes",
    "systemone.legend.echo",
    "systemone.legend.decimals",
    "systemone.legend.exponents",
    "systemone.legend.integers",
    PRINTED,
    CAPTURED,
    "systemone.answer.exact",
    "systemone.legend.minus-zero",
)
class LegendIsAList(SystemOneToy):
    def scored(self, levels: Sequence[Any], probabilities: Sequence[float]) -> Json:
        return super().scored(levels, probabilities) | {"legend": list(levels)}


LEGENDS = tuple(f"systemone.legend.{what}" for what in ("decimals", "exponents", "integers"))


@breaks("systemone.legend.echo", *LEGENDS, CAPTURED, "systemone.legend.minus-zero")
class EchoesWhatItAsked(SystemOneToy):
    def echo(self, level: Any) -> Any:
        return self.text(level)


@breaks("systemone.legend.echo")
class SortsKeysInTheLegend(SystemOneToy):
    def echo(self, level: Any) -> Any:
        return dict(sorted(level.items())) if isinstance(level, dict) else level


@breaks("systemone.legend.decimals", "systemone.legend.exponents")
class LosesDigits(SystemOneToy):
    def digits(self, number: Spelled) -> str:
        return repr(float(number))


@breaks("systemone.legend.exponents")
class SpellsExponentsInOneWay(SystemOneToy):
    def digits(self, number: Spelled) -> str:
        return repr(float(number)) if "e" in number.text.lower() else number.text


@breaks("systemone.legend.integers", CAPTURED)
class RoundsIntegersInTheLegend(SystemOneToy):
    def spell(self, value: Any) -> str:
        return super().spell(int(float(value)) if type(value) is int else value)


@breaks("systemone.legend.minus-zero")
class EchoesMinusZeroAsZero(SystemOneToy):
    def minus_zero(self) -> str:
        return "0"


@breaks("systemone.score.unclipped")
class ClipsScores(SystemOneToy):
    def mean(self, probabilities: Sequence[float]) -> float:
        return min(super().mean(probabilities), float(len(probabilities) - 1))


@breaks("systemone.noul.probability", PRINTED, CAPTURED)
class SaysYes(SystemOneToy):
    def yes(self, probabilities: Sequence[float]) -> float:
        return 100 * probabilities[0]
