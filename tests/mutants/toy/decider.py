"""A right server of typed decisions, which it reads in a trained decider's own format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import define, evolve

from caldrix_conformance.capabilities import Capability
from tests.mutants.toy import model as toy_model
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import Json, Toy, right
from tests.mutants.toy.systemone import Row, SystemOneToy, count, label_logits, softmax

PREFIX = "this model is a decider: "
MOST_OPTIONS, MOST_LEVELS = 255, 10
MOST_STATE_TOKENS = 3000
TEMPERATURE = 1.03
_NUMBER = re.compile(r"^\s*-?\d+\s*:\s*")


def label(index: int) -> str:
    """A to Z, AA, AB and so on; every one of them is a token here."""
    first, last = divmod(index, 26)
    return ("" if first == 0 else chr(64 + first)) + chr(65 + last)


@right
@define
class DeciderToy(SystemOneToy):
    """Its config asks the levels of a score one at a time."""

    lacks: ClassVar[frozenset[Capability]] = Toy.lacks - {
        Capability.SYSTEMONE,
        Capability.DECIDER,
    }
    separators: ClassVar[tuple[str, str]] = (", ", ": ")

    # Reading a request

    def check_count(self, questions: int) -> None:
        try:
            super().check_count(questions)
        except Refused as refused:
            raise evolve(refused, message=PREFIX + refused.message) from None

    def check_instructions(self, question: Json, place: str) -> None:
        super().check_instructions(question, place)
        if question.get("instructions") in (None, ""):
            self.do_without_instructions(question, place)

    def do_without_instructions(self, question: Json, place: str) -> None:
        if question["type"] != "noul":
            raise Refused(400, f"{PREFIX}instructions are required", place)
        criteria = question.get("criteria")
        described = criteria.values() if isinstance(criteria, dict) else ()
        if not any(self.describes(text) for text in described):
            raise Refused(400, f"{PREFIX}instructions or criteria are required", place)

    def describes(self, text: Any) -> bool:
        return text not in (None, "")

    def limits(self, kind: str) -> tuple[int, int]:
        most = {"choice": MOST_OPTIONS, "score": MOST_LEVELS}
        return (2, most[kind]) if kind in most else super().limits(kind)

    def refuse_size(self, message: str, place: str) -> None:
        raise Refused(400, PREFIX + message, place)

    def check_sizes(self, body: Json) -> None:
        tokens = count(f"Context:\n{self.state_text(body['state'])}")
        if tokens > MOST_STATE_TOKENS:
            self.refuse_state(tokens)
        super().check_sizes(body)
        rows = [
            row for each in body["questions"].values() for row in self.rows(body["state"], each)
        ]
        together, most = sum(count(row.text) for row in rows), 64 * toy_model.CONTEXT
        if together > most:
            self.refuse_together(f"{together} tokens in all, and at most {most} are read")

    def refuse_state(self, tokens: int) -> None:
        words = f"the state is {tokens} tokens, and at most {MOST_STATE_TOKENS} are read"
        raise Refused(400, words, "state")

    def refuse_together(self, message: str) -> None:
        raise Refused(400, message, "questions")

    # Writing prompts

    def state_text(self, state: Any) -> str:
        return self.text(self.with_indexes(state))

    def with_indexes(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.with_indexes(member) for name, member in value.items()}
        if not isinstance(value, list):
            return value
        items = [self.with_indexes(item) for item in value]
        if len(items) < self.least_indexed():
            return items
        return [
            {"_index": index, **(item if isinstance(item, dict) else {"value": item})}
            for index, item in enumerate(items)
        ]

    def least_indexed(self) -> int:
        return 8

    def rows(self, state: Any, question: Json) -> list[Row]:
        context = f"Context:\n{self.state_text(state)}"
        asked, options = self.text(question.get("instructions") or ""), self.options(question)
        if question["type"] != "score":
            return [self.row(context, asked or "Which answer fits the context?", options)]
        return [self.row(context, self.about(asked, level), ["no", "yes"]) for level in options]

    def about(self, asked: str, level: str) -> str:
        level = self.without_number(level)
        return f"{asked}\nProposed answer: {level}\nDoes the proposed answer fit?"

    def without_number(self, level: str) -> str:
        return _NUMBER.sub("", level, count=1)

    def options(self, question: Json) -> list[str]:
        if question["type"] == "score":
            return [self.text(level) for level in question["criteria"]]
        criteria = question.get("criteria") or {}
        if question["type"] == "noul":
            criteria = {"no": criteria.get("false"), "yes": criteria.get("true")}
        return [self.described(name, text) for name, text in criteria.items()]

    def row(self, context: str, asked: str, options: Sequence[str]) -> Row:
        lines = [f"({label(index)}) {option}" for index, option in enumerate(options)]
        piece = "\n".join([f"\n\nQuestion: {asked}", "Options:", *lines, "Answer: ("])
        return Row(context, piece, len(options))

    # Answering

    def input_tokens(self, rows: Sequence[Row]) -> int:
        if len(rows) == 1:
            return count(rows[0].context) + count(rows[0].piece)
        return count(rows[0].context) + sum(count(row.piece) for row in rows)

    def read_row(self, row: Row) -> Sequence[float]:
        logits = label_logits(row.text, row.labels)
        return softmax([logit / TEMPERATURE for logit in logits])

    def probabilities(self, state: Any, question: Json) -> Sequence[float]:
        rows = self.rows(state, question)
        if question["type"] != "score":
            return self.read_row(rows[0])
        yes = [self.read_row(row)[1] for row in rows]
        return [p / sum(yes) for p in yes]

    def yes(self, probabilities: Sequence[float]) -> float:
        return probabilities[1]
