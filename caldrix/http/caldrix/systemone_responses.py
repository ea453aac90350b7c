"""The answer to a request for decisions as JSON: its members in the order of the printed one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from caldrix.decisions.answers import Answer, ChoiceAnswer, NoulAnswer, ScoreAnswer
from caldrix.decisions.questions import Choice, Question, Score
from caldrix.decisions.values import Number, Value, echoed


def encode_decisions(
    model: str, answers: Mapping[str, tuple[Question, Answer]], input_tokens: int
) -> bytes:
    """The body: each question's answer under its name."""
    body: Value = {
        "model": model,
        "answers": {name: _answer(*answered) for name, answered in answers.items()},
        "usage": {"input_tokens": Number(str(input_tokens)), "output_tokens": Number("0")},
    }
    return echoed(body).encode()


def _answer(question: Question, answer: Answer) -> Value:
    match question, answer:
        case Choice(options=options), ChoiceAnswer():
            return {
                "type": "choice",
                "choice": answer.choice,
                "probabilities": _by_name(options, answer.probabilities),
                "confidence": Number.of(answer.confidence),
            }
        case Score(levels=levels), ScoreAnswer():
            indexes = [str(index) for index in range(len(levels))]
            return {
                "type": "score",
                "score": Number.of(answer.score),
                "legend": dict(zip(indexes, levels, strict=True)),
                "probabilities": _by_name(indexes, answer.probabilities),
                "confidence": Number.of(answer.confidence),
            }
        case _, NoulAnswer():
            return {"type": "noul", "noul": Number.of(answer.noul)}
    raise AssertionError("an answer of another type than its question")


def _by_name(names: Iterable[str], probabilities: Iterable[float]) -> Mapping[str, Value]:
    return {name: Number.of(p) for name, p in zip(names, probabilities, strict=True)}
