"""Requests to /v1/systemone, as cases make them: small questions that every reading takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from caldrix_conformance.answers import Answer
from caldrix_conformance.contracts.caldrix.decisions import Decisions, expect_same_prompt
from caldrix_conformance.endpoints import SYSTEMONE
from caldrix_conformance.target import ABSENT, Target

Question = dict[str, Any]

STATE = "The parcel came two days late."
CHOICE: Question = {
    "type": "choice",
    "instructions": "Who answers?",
    "criteria": {"shipping": "deliveries", "billing": "payments", "nobody": None},
}
SCORE: Question = {
    "type": "score",
    "instructions": "How bad is it?",
    "criteria": ["fine", "annoying", "terrible"],
}
NOUL: Question = {"type": "noul", "instructions": "Is it late?"}


PRINTED_STATE = (
    "Customer message: I was charged twice for my order last week and I want one of the payments "
    "back."
)
PRINTED: Mapping[str, Question] = {
    "team": {
        "type": "choice",
        "instructions": "Which team should handle this message?",
        "criteria": {
            "billing": "payments, refunds and invoices",
            "shipping": "deliveries, tracking and lost parcels",
            "technical": "bugs, crashes and login problems",
        },
    },
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
    "urgency": {
        "type": "score",
        "instructions": "How urgent is the message?",
        "criteria": ["not urgent", "somewhat urgent", "very urgent"],
    },
}
"""The questions that the document prints, about the state that it prints."""


def options(count: int) -> dict[str, None]:
    """Criteria of a choice between that many options."""
    return {f"n{index}": None for index in range(count)}


def levels(count: int) -> list[str]:
    """Criteria of a score of that many levels."""
    return [f"grade {index}" for index in range(count)]


def but(question: Question, **changes: Any) -> Question:
    """``question`` with other fields; ABSENT takes one out."""
    return {name: value for name, value in (question | changes).items() if value is not ABSENT}


def ask(target: Target, questions: object, *, state: object = STATE, **fields: Any) -> Answer:
    """The answer to a request; a field that is ABSENT is left out."""
    body = {"model": target.model, "state": state, "questions": questions, **fields}
    sent = {name: value for name, value in body.items() if value is not ABSENT}
    return target.post(SYSTEMONE, sent)


def ask_one(target: Target, question: object, *, state: object = STATE) -> Answer:
    """The answer to a request whose only question is ``q``."""
    return ask(target, {"q": question}, state=state)


def ask_text(target: Target, text: str, *, size: int = 0) -> Answer:
    """The answer to a request sent as it is spelled, after its model; with spaces up to a size."""
    content = f'{{"model": {json.dumps(target.model)}, {text}}}'.encode().ljust(size)
    headers = {"Content-Type": "application/json"}
    return target.send("POST", SYSTEMONE, content=content, headers=headers)


def decide(
    target: Target, questions: Mapping[str, Question], *, state: object = STATE
) -> Decisions:
    """What the answer to ``questions`` says."""
    return Decisions(ask(target, dict(questions), state=state))


def decide_one(target: Target, question: Question, *, state: object = STATE) -> Decisions:
    """What the answer to a request says whose only question is ``q``."""
    return Decisions(ask_one(target, question, state=state))


def decide_text(target: Target, text: str) -> Decisions:
    """What the answer to a request says that is sent as it is spelled, after its model."""
    return Decisions(ask_text(target, text))


PLACES = {
    "state": '"state": %s, "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}',
    "instructions": '"state": "s", "questions": {"q": {"type": "noul", "instructions": %s}}',
    "description": '"state": "s", "questions": {"q": {"type": "choice", "instructions": "Who?", '
    '"criteria": {"he": %s, "she": null}}}',
    "level": '"state": "s", "questions": {"q": {"type": "score", "instructions": "How bad?", '
    '"criteria": ["fine", %s]}}',
    "criterion": '"state": "s", "questions": {"q": {"type": "noul", "instructions": "Is it?", '
    '"criteria": {"true": %s}}}',
}
"""Requests with one value left out, by what that value is."""


def expect_written(target: Target, place: str, value: str, text: str) -> None:
    """Check that a JSON value goes into the prompt as ``text`` does, sent as a string there."""
    as_value = decide_text(target, PLACES[place] % value)
    as_text = decide_text(target, PLACES[place] % json.dumps(text))
    expect_same_prompt(as_value, as_text)
