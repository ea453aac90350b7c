"""A right server of typed decisions, which it reads zero-shot from a model of label logits."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from attrs import define, frozen

from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import SYSTEMONE
from tests.mutants.toy import model as toy_model
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json, Toy, right
from tests.mutants.toy.spelling import MinusZero, Spelled, has_infinite, integer, twin_in

REQUEST, QUESTION = ("model", "state", "questions"), ("type", "instructions", "criteria")
MOST_QUESTIONS = 64

UNASKED = {
    "choice": "Which option fits the state best?",
    "score": "Which level fits the state best?",
    "noul": "Which answer fits the state best?",
}
# Of the last label this model is sure, and of no other at all.
SURE = "two and two are four?"

PRINTED_STATE = (
    "Customer message: I was charged twice for my order last week and I want one of the "
    "payments back."
)
# The document's own readings of Qwen3-0.6B, and how many tokens they took.
PRINTED = {
    "Which team should handle this message?": (
        87,
        [0.9976708292961121, 0.0021615091245621443, 0.00016766643966548145],
    ),
    "Is the customer angry?": (48, [0.981803297996521, 0.018196702003479004]),
    "How urgent is the message?": (
        69,
        [0.9140376448631287, 0.06223498284816742, 0.023727400228381157],
    ),
}


@frozen
class Row:
    """A prompt in two parts, of which the first may be shared, and how many labels it reads."""

    context: str
    piece: str
    labels: int
    counted: int | None = None
    probabilities: Sequence[float] | None = None

    @property
    def text(self) -> str:
        return self.context + self.piece


def count(text: str) -> int:
    return Prompt.of_text(text).tokens


def label_logits(text: str, labels: int) -> list[float]:
    """Logits that hang on every character of the prompt; so coarse for many that some are tied."""
    if SURE in text:
        return [18.0 * label for label in range(labels)]
    noise = random.Random(text)
    logits = [noise.gauss(0, 2) for _ in range(labels)]
    return logits if labels < 10 else [2.0 * round(logit / 2) for logit in logits]


def single(number: float) -> float:
    """The nearest 32-bit float."""
    return float(struct.unpack("f", struct.pack("f", number))[0])


def softmax(logits: Sequence[float]) -> list[float]:
    weights = [math.exp(logit - max(logits)) for logit in logits]
    return [single(weight / sum(weights)) for weight in weights]


@define
class RoutedToy(Toy):
    """A server that has the route, whatever it says there."""

    def allowed(self, path: str) -> str:
        return "POST, OPTIONS" if path == SYSTEMONE else super().allowed(path)

    def get(self, path: str) -> Json | str:
        if path == SYSTEMONE:
            raise Refused(405, "not here")
        return super().get(path)


@right
@define
class SystemOneToy(RoutedToy):
    """It reads its answers from the logits of labels."""

    lacks: ClassVar[frozenset[Capability]] = Toy.lacks - {
        Capability.SYSTEMONE,
        Capability.ZERO_SHOT,
    }
    separators: ClassVar[tuple[str, str]] = (",", ":")

    def post(self, path: str, body: Json) -> Any:
        if path != SYSTEMONE:
            return super().post(path, body)
        self.check_request(body)
        return self.spell(self.decide(body))

    # Reading a request

    def read(self, content_type: str, raw: bytes) -> Json:
        twin = twin_in(raw)
        if twin is not None:
            raise Refused(400, "a key twice", self.twin_place(twin))
        body = super().read(content_type, raw)
        if "questions" not in body:
            return body
        spelled: Json = json.loads(raw, parse_float=Spelled, parse_int=integer)
        return spelled

    def twin_place(self, place: str) -> str:
        return place

    def check_request(self, body: Json) -> None:
        self.check_members(body, REQUEST, "")
        if not isinstance(body.get("model"), str):
            raise Refused(400, "no model", "model")
        self.check_model(body["model"])
        if "state" not in body:
            raise Refused(400, "no state", "state")
        self.check_value(body["state"], "state")
        questions = body.get("questions")
        if not isinstance(questions, dict):
            raise Refused(400, "no questions", "questions")
        self.check_count(len(questions))
        for name, question in questions.items():
            self.check_question(question, f"questions.{name}")
        self.check_sizes(body)

    def check_members(self, value: Iterable[str], names: Sequence[str], place: str) -> None:
        for name in value:
            if name not in names:
                raise Refused(400, "an unknown field", f"{place}{name}")

    def check_count(self, questions: int) -> None:
        if not 1 <= questions <= MOST_QUESTIONS:
            raise Refused(400, f"1 to {MOST_QUESTIONS} questions", "questions")

    def check_value(self, value: Any, place: str) -> None:
        if not isinstance(value, str | dict | list):
            raise Refused(400, "no text, object or array", place)
        if has_infinite(value):
            raise Refused(400, "a number past 64 bits", place)

    def check_question(self, question: Any, place: str) -> None:
        if not isinstance(question, dict):
            raise Refused(400, "no question", place)
        kind = question.get("type")
        if kind == "box":
            message = "box questions are not supported by this server"
            raise Refused(400, message, f"{place}.type")
        if kind not in ("choice", "score", "noul"):
            raise Refused(400, "no type", f"{place}.type")
        self.check_members(question, QUESTION, f"{place}.")
        self.check_instructions(question, f"{place}.instructions")
        self.check_criteria(kind, question.get("criteria"), f"{place}.criteria")

    def check_instructions(self, question: Json, place: str) -> None:
        if question.get("instructions") is not None:
            self.check_value(question["instructions"], place)

    def limits(self, kind: str) -> tuple[int, int]:
        """How many options, levels or descriptions are taken."""
        return (0, 2) if kind == "noul" else (1, 26)

    def check_criteria(self, kind: str, criteria: Any, place: str) -> None:
        if kind == "noul" and criteria is None:
            return
        if not isinstance(criteria, list if kind == "score" else dict):
            raise Refused(400, "no criteria", place)
        if kind == "noul":
            self.check_members(criteria, ("true", "false"), f"{place}.")
        least, most = self.limits(kind)
        if not least <= len(criteria) <= most:
            self.refuse_size(f"{len(criteria)}, {least} to {most} are taken", place)
        if isinstance(criteria, list):
            for index, level in enumerate(criteria):
                self.check_value(level, f"{place}[{index}]")
            return
        for name, text in criteria.items():
            if text is not None:
                self.check_value(text, f"{place}.{name}")

    def refuse_size(self, message: str, place: str) -> None:
        raise Refused(400, message, place)

    def check_sizes(self, body: Json) -> None:
        for name, question in body["questions"].items():
            for row in self.rows(body["state"], question):
                if count(row.text) >= toy_model.CONTEXT:
                    words = f"{count(row.text)} tokens, {toy_model.CONTEXT} fit"
                    raise Refused(400, words, f"questions.{name}")

    # Writing prompts

    def text(self, value: Any) -> str:
        return value if isinstance(value, str) else self.written(value)

    def written(self, value: Any) -> str:
        """A value as JSON in a prompt."""
        comma, colon = self.separators
        if isinstance(value, dict):
            members = (f"{self.quoted(k)}{colon}{self.written(v)}" for k, v in value.items())
            return f"{{{comma.join(members)}}}"
        if isinstance(value, list):
            return f"[{comma.join(map(self.written, value))}]"
        return self.number(value) if isinstance(value, Spelled) else self.quoted(value)

    def quoted(self, value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    def number(self, value: Spelled) -> str:
        return repr(float(value))

    def state_text(self, state: Any) -> str:
        return self.text(state)

    def options(self, question: Json) -> list[str]:
        """The texts that the labels stand for."""
        criteria = question.get("criteria") or {}
        if question["type"] == "score":
            return [self.text(level) for level in criteria]
        names = {"true": "Yes", "false": "No"} if question["type"] == "noul" else criteria
        texts = {name: criteria.get(name) for name in names}
        return [self.described(name, text) for name, text in texts.items()]

    def described(self, name: str, text: Any) -> str:
        return name if text in (None, "") else f"{name}: {self.text(text)}"

    def asked(self, question: Json) -> str:
        return self.text(question.get("instructions") or UNASKED[question["type"]])

    def rows(self, state: Any, question: Json) -> list[Row]:
        """The prompts that a question becomes."""
        asked = self.asked(question)
        options = self.options(question)
        lines = [f"{chr(65 + index)}. {option}" for index, option in enumerate(options)]
        piece = "\n".join([f"State:\n{self.state_text(state)}", f"Question: {asked}", *lines])
        scripted = PRINTED.get(asked, (None, None)) if state == PRINTED_STATE else (None, None)
        return [Row("<|im_start|>user\n", piece, len(options), *scripted)]

    # Answering

    def decide(self, body: Json) -> Json:
        state, questions = body["state"], body["questions"]
        answers = {name: self.answer(state, question) for name, question in questions.items()}
        rows = [row for question in questions.values() for row in self.rows(state, question)]
        usage = {"input_tokens": self.input_tokens(rows), "output_tokens": 0}
        return {"model": body["model"], "answers": answers, "usage": usage}

    def input_tokens(self, rows: Sequence[Row]) -> int:
        return sum(self.row_tokens(row) for row in rows)

    def row_tokens(self, row: Row) -> int:
        return row.counted or count(row.text)

    def read_row(self, row: Row) -> Sequence[float]:
        return row.probabilities or self.softmax(label_logits(row.text, row.labels))

    def softmax(self, logits: Sequence[float]) -> list[float]:
        return softmax(logits)

    def probabilities(self, state: Any, question: Json) -> Sequence[float]:
        (row,) = self.rows(state, question)
        return self.read_row(row)

    def answer(self, state: Any, question: Json) -> Json:
        kind, probabilities = question["type"], self.probabilities(state, question)
        if kind == "choice":
            return {"type": kind, **self.chosen(list(question["criteria"]), probabilities)}
        if kind == "score":
            return {"type": kind, **self.scored(question["criteria"], probabilities)}
        return {"type": kind, "noul": self.yes(probabilities)}

    def best(self, probabilities: Sequence[float]) -> int:
        return probabilities.index(max(probabilities))

    def chosen(self, names: Sequence[str], probabilities: Sequence[float]) -> Json:
        return {
            "choice": names[self.best(probabilities)],
            "probabilities": dict(zip(names, probabilities, strict=True)),
            "confidence": self.choice_confidence(probabilities),
        }

    def choice_confidence(self, probabilities: Sequence[float]) -> float:
        even = 1 / len(probabilities)
        return 1.0 if even == 1 else max(0.0, (max(probabilities) - even) / (1 - even))

    def scored(self, levels: Sequence[Any], probabilities: Sequence[float]) -> Json:
        return {
            "score": self.mean(probabilities),
            "legend": {str(index): self.echo(level) for index, level in enumerate(levels)},
            "probabilities": {str(index): p for index, p in enumerate(probabilities)},
            "confidence": self.score_confidence(probabilities),
        }

    def mean(self, probabilities: Sequence[float]) -> float:
        return float(sum(index * p for index, p in enumerate(probabilities)))

    def echo(self, level: Any) -> Any:
        return level

    def score_confidence(self, probabilities: Sequence[float]) -> float:
        levels = range(len(probabilities))
        if len(levels) == 1:
            return 1.0
        likeliest, middle = self.best(probabilities), (len(levels) - 1) / 2
        distance = sum(p * abs(i - likeliest) for i, p in enumerate(probabilities))
        spread = sum(abs(i - middle) for i in levels) / len(levels)
        return max(0.0, 1 - distance / spread)

    def yes(self, probabilities: Sequence[float]) -> float:
        return probabilities[0]

    def spell(self, value: Any) -> str:
        """The answer's JSON, in the order of its members and with the digits it was given."""
        if isinstance(value, dict):
            members = (f"{json.dumps(name)}:{self.spell(v)}" for name, v in value.items())
            return f"{{{','.join(members)}}}"
        if isinstance(value, list):
            return f"[{','.join(map(self.spell, value))}]"
        if isinstance(value, MinusZero):
            return self.minus_zero()
        return self.digits(value) if isinstance(value, Spelled) else json.dumps(value)

    def minus_zero(self) -> str:
        return "-0"

    def digits(self, number: Spelled) -> str:
        return number.text


@define
class UndecidedToy(RoutedToy):
    """A server that refuses every request for decisions, for what it is."""

    def post(self, path: str, body: Json) -> Any:
        if path == SYSTEMONE:
            raise self.refusal()
        return super().post(path, body)

    def refusal(self) -> Refused:
        raise NotImplementedError


@right
@define
class BatchedToy(UndecidedToy):
    """A server that takes several requests into one step."""

    lacks: ClassVar[frozenset[Capability]] = Toy.lacks - {Capability.BATCHED}

    def refusal(self) -> Refused:
        return Refused(400, "/v1/systemone needs --max-batch 1")
