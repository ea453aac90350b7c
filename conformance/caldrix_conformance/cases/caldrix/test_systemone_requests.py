"""Requests to /v1/systemone: what is taken, and what is refused with the field it names."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.contracts.caldrix.decisions import Decisions
from caldrix_conformance.contracts.caldrix.questions import (
    CHOICE,
    NOUL,
    SCORE,
    STATE,
    ask,
    ask_one,
    ask_text,
    but,
    levels,
    options,
)
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

TOO_LONG = "a b c d e " * 300_000
"""More than any context, in a request of 3 MB."""

JSON_OBJECT: dict[str, Any] = {"order": 7, "late": True}
JSON_ARRAY: list[Any] = ["late", 2, None]


def described(value: object) -> dict[str, Any]:
    """A choice one of whose descriptions is ``value``."""
    return but(CHOICE, criteria={"shipping": value, "billing": "payments"})


def levelled(value: object) -> dict[str, Any]:
    """A score one of whose levels is ``value``."""
    return but(SCORE, criteria=["fine", value])


def meant(value: object, side: str = "true") -> dict[str, Any]:
    """A noul one of whose two answers is described by ``value``."""
    return but(NOUL, criteria={"true": "late", "false": "in time", side: value})


TAKEN = [
    row("systemone.state.string", CHOICE, "Late."),
    row("systemone.state.object", CHOICE, JSON_OBJECT),
    row("systemone.state.array", CHOICE, JSON_ARRAY),
    row("systemone.state.empty", NOUL, ""),
    row("systemone.state.empty", NOUL, {}),
    row("systemone.state.empty", NOUL, []),
    row("systemone.instructions.string", but(NOUL, instructions="Say it."), STATE),
    row("systemone.instructions.object", but(NOUL, instructions=JSON_OBJECT), STATE),
    row("systemone.instructions.array", but(SCORE, instructions=JSON_ARRAY), STATE),
    row("systemone.instructions.null", but(CHOICE, instructions=None), STATE),
    row("systemone.instructions.null", but(SCORE, instructions=None), STATE),
    row("systemone.instructions.null", but(NOUL, instructions=None), STATE),
    row("systemone.instructions.absent", but(CHOICE, instructions=ABSENT), STATE),
    row("systemone.instructions.absent", but(SCORE, instructions=ABSENT), STATE),
    row("systemone.instructions.absent", but(NOUL, instructions=ABSENT), STATE),
    row("systemone.description.string", described("It came."), STATE),
    row("systemone.description.object", described(JSON_OBJECT), STATE),
    row("systemone.description.array", described(JSON_ARRAY), STATE),
    row("systemone.description.null", described(None), STATE),
    row("systemone.level.string", levelled("Bad."), STATE),
    row("systemone.level.object", levelled(JSON_OBJECT), STATE),
    row("systemone.level.array", levelled(JSON_ARRAY), STATE),
    row("systemone.noul-criteria.absent", but(NOUL, instructions="Late?"), STATE),
    *(
        row("systemone.noul-criteria.string", meant("So.", side), STATE)
        for side in ("true", "false")
    ),
    *(
        row("systemone.noul-criteria.object", meant(JSON_OBJECT, side), STATE)
        for side in ("true", "false")
    ),
    *(
        row("systemone.noul-criteria.array", meant(JSON_ARRAY, side), STATE)
        for side in ("true", "false")
    ),
    *(row("systemone.noul-criteria.null", meant(None, side), STATE) for side in ("true", "false")),
    row("systemone.noul-criteria.one", but(NOUL, criteria={"true": "late"}), STATE),
    row("systemone.noul-criteria.one", but(NOUL, criteria={"false": "in time"}), STATE),
    row("systemone.options.least", but(CHOICE, criteria=options(1)), STATE),
    row("systemone.options.most", but(CHOICE, criteria=options(26)), STATE),
    row("systemone.levels.least", but(SCORE, criteria=levels(1)), STATE),
    row("systemone.levels.most", but(SCORE, criteria=levels(26)), STATE),
]


@pytest.mark.parametrize(("question", "state"), TAKEN)
def test_taken(target: Target, question: object, state: object) -> None:
    Decisions(ask_one(target, question, state=state)).of("q")


@checks("systemone.questions.most")
def test_most_questions(target: Target) -> None:
    seen = Decisions(ask(target, {f"q{index}": NOUL for index in range(64)})).answers
    assert len(seen) == 64, f"{len(seen)} answers to 64 questions"


FIELDS = [
    row("systemone.model.required", {"model": ABSENT}, "model"),
    row("systemone.model.type", {"model": 7}, "model"),
    row("systemone.model.type", {"model": None}, "model"),
    row("systemone.model.unknown", {"model": "no-such-model"}, "model"),
    row("systemone.state.required", {"state": ABSENT}, "state"),
    row("systemone.state.type", {"state": 7}, "state"),
    row("systemone.state.type", {"state": 1.5}, "state"),
    row("systemone.state.type", {"state": True}, "state"),
    row("systemone.state.type", {"state": None}, "state"),
    row("systemone.questions.required", {"questions": ABSENT}, "questions"),
    row("systemone.questions.type", {"questions": None}, "questions"),
    row("systemone.questions.type", {"questions": [NOUL]}, "questions"),
    row("systemone.questions.type", {"questions": "q"}, "questions"),
    row("systemone.questions.none", {"questions": {}}, "questions"),
    row(
        "systemone.questions.too-many",
        {"questions": {f"q{i}": NOUL for i in range(65)}},
        "questions",
    ),
    row("systemone.unknown.request", {"no_such_field": 1}, "no_such_field"),
    row("systemone.unknown.request", {"user": "me"}, "user"),
    row("systemone.unknown.generation", {"temperature": 0.5}, "temperature"),
    row("systemone.unknown.generation", {"max_tokens": 1}, "max_tokens"),
    row("systemone.unknown.generation", {"stream": True}, "stream"),
    row("systemone.unknown.assets", {"assets": {"a": "b"}}, "assets"),
    row("systemone.unknown.assets", {"assets": []}, "assets"),
    row("systemone.unknown.images", {"images": ["data:image/png;base64,AA=="]}, "images"),
    row("systemone.unknown.images", {"images": []}, "images"),
    row("systemone.unknown.template", {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
    row("systemone.unknown.template", {"chat_template_kwargs": {}}, "chat_template_kwargs"),
]


@pytest.mark.parametrize(("fields", "param"), FIELDS)
def test_refused(target: Target, fields: dict[str, Any], param: str) -> None:
    ask(target, **{"questions": {"q": NOUL}, **fields}).expect_refusal(param)


Q, CRITERIA, INSTRUCTIONS = "questions.q", "questions.q.criteria", "questions.q.instructions"

QUESTIONS = [
    row("systemone.question.type", "late?", Q),
    row("systemone.question.type", None, Q),
    row("systemone.question.type", [NOUL], Q),
    row("systemone.kind.required", but(NOUL, type=ABSENT), f"{Q}.type"),
    row("systemone.kind.type", but(NOUL, type=7), f"{Q}.type"),
    row("systemone.kind.type", but(NOUL, type=None), f"{Q}.type"),
    row("systemone.kind.unknown", but(NOUL, type="rank"), f"{Q}.type"),
    row("systemone.kind.unknown", but(CHOICE, type="Choice"), f"{Q}.type"),
    row("systemone.kind.box", {"type": "box", "criteria": {}}, f"{Q}.type"),
    row("systemone.instructions.type", but(NOUL, instructions=7), INSTRUCTIONS),
    row("systemone.instructions.type", but(CHOICE, instructions=True), INSTRUCTIONS),
    row("systemone.instructions.type", but(SCORE, instructions=1.5), INSTRUCTIONS),
    row("systemone.options.required", but(CHOICE, criteria=ABSENT), CRITERIA),
    row("systemone.options.type", but(CHOICE, criteria=None), CRITERIA),
    row("systemone.options.type", but(CHOICE, criteria="shipping"), CRITERIA),
    row("systemone.options.type", but(CHOICE, criteria=["shipping", "billing"]), CRITERIA),
    row("systemone.options.none", but(CHOICE, criteria={}), CRITERIA),
    row("systemone.options.too-many", but(CHOICE, criteria=options(27)), CRITERIA),
    row("systemone.levels.required", but(SCORE, criteria=ABSENT), CRITERIA),
    row("systemone.levels.type", but(SCORE, criteria=None), CRITERIA),
    row("systemone.levels.type", but(SCORE, criteria="fine"), CRITERIA),
    row("systemone.levels.type", but(SCORE, criteria={"0": "fine", "1": "bad"}), CRITERIA),
    row("systemone.levels.none", but(SCORE, criteria=[]), CRITERIA),
    row("systemone.levels.too-many", but(SCORE, criteria=levels(27)), CRITERIA),
    row("systemone.noul-criteria.type", but(NOUL, criteria=["late", "in time"]), CRITERIA),
    row("systemone.noul-criteria.type", but(NOUL, criteria="late"), CRITERIA),
    row("systemone.unknown.question", but(NOUL, no_such_field=1), f"{Q}.no_such_field"),
    row("systemone.unknown.question", but(CHOICE, levels=["a"]), f"{Q}.levels"),
    row("systemone.unknown.question", but(SCORE, images=[]), f"{Q}.images"),
    row("systemone.unknown.criteria", meant("perhaps", "maybe"), f"{CRITERIA}.maybe"),
    row("systemone.unknown.criteria", meant("so", "True"), f"{CRITERIA}.True"),
]


@pytest.mark.parametrize(("question", "param"), QUESTIONS)
def test_question_refused(target: Target, question: object, param: str) -> None:
    ask_one(target, question).expect_refusal(param)


NO_TEXTS = (7, 1.5, True)

VALUES = [
    *(row("systemone.description.type", described(value)) for value in NO_TEXTS),
    *(row("systemone.level.type", levelled(value)) for value in (*NO_TEXTS, None)),
    *(row("systemone.noul-criteria.value", meant(value)) for value in NO_TEXTS),
    row("systemone.noul-criteria.value", meant(False, "false")),
]


@pytest.mark.parametrize("question", VALUES)
def test_value_refused(target: Target, question: object) -> None:
    ask_one(target, question).expect_refusal(CRITERIA, within=True)


@pytest.mark.parametrize(
    ("question", "place"),
    [
        row("systemone.refusal.place", described(7), f"{CRITERIA}.shipping"),
        row("systemone.refusal.place", levelled(7), f"{CRITERIA}[1]"),
        row("systemone.refusal.place", meant(7), f"{CRITERIA}.true"),
    ],
)
def test_place(target: Target, question: object, place: str) -> None:
    ask_one(target, question).expect_refusal(place)


Q_TEXT = '"q": {"type": "noul", "instructions": "Is it late?"}'
QUESTIONS_TEXT = f'"questions": {{{Q_TEXT}}}'
TWINS = [
    row("systemone.duplicate.request", f'"state": "s", {QUESTIONS_TEXT}, "state": "s"', "state"),
    row(
        "systemone.duplicate.question",
        f'"state": "s", "questions": {{{Q_TEXT}, {Q_TEXT}}}',
        "questions.q",
    ),
    row(
        "systemone.duplicate.field",
        '"state": "s", "questions": {"q": {"type": "noul", "instructions": "a", "type": "noul"}}',
        "questions.q.type",
    ),
    row(
        "systemone.duplicate.option",
        '"state": "s", "questions": {"q": {"type": "choice", "instructions": "a", '
        '"criteria": {"red": null, "blue": null, "red": null}}}',
        "questions.q.criteria.red",
    ),
]


@pytest.mark.parametrize(("text", "param"), TWINS)
def test_duplicate(target: Target, text: str, param: str) -> None:
    ask_text(target, text).expect_refusal(param)


@checks("systemone.duplicate.value")
@pytest.mark.parametrize(
    ("text", "param"),
    [
        (f'"state": {{"a": {{"b": 1, "b": 2}}}}, {QUESTIONS_TEXT}', "state"),
        (
            '"state": "s", "questions": {"q": {"type": "score", "instructions": "a", '
            '"criteria": ["fine", {"b": 1, "b": 2}]}}',
            CRITERIA,
        ),
    ],
)
def test_duplicate_in_value(target: Target, text: str, param: str) -> None:
    ask_text(target, text).expect_refusal(param, within=True)


@checks("systemone.kind.box-printed")
@captured("systemone/document-box")
def test_printed_refusal(golden: Golden) -> None:
    golden.replay()


@checks("systemone.refusal.object")
def test_error_object(target: Target) -> None:
    answer = ask_one(target, but(NOUL, instructions=7)).expect(400)
    assert set(answer.object) == {"error"}, f"the body is {answer.object}"
    members = {"message", "type", "param", "code"}
    assert set(answer.error) == members, f"the error is {answer.error}"
    seen = answer.error["type"], answer.error["code"]
    assert seen == ("invalid_request_error", None), f"type and code are {seen}"
    message = answer.error["message"]
    assert isinstance(message, str), f"the message is {message!r}"
    assert message, "the message is empty"


@checks("systemone.refusal.sorted")
def test_order_of_an_error(target: Target) -> None:
    seen = list(ask_one(target, but(NOUL, type="box")).expect(400).error)
    assert seen == sorted(seen), f"the error's members come as {seen}"


@checks("systemone.refusal.whole")
def test_one_wrong_question(target: Target) -> None:
    questions = {"good": NOUL, "better": CHOICE, "bad": but(SCORE, criteria=[])}
    ask(target, questions).expect_refusal("questions.bad.criteria")


@checks("systemone.refusal.unknown-first")
def test_unknown_field_first(target: Target) -> None:
    answer = ask(target, {"q": 7}, model=7, state=7, no_such_field=1)
    answer.expect_refusal("no_such_field")


@checks("systemone.refusal.first-question")
@pytest.mark.parametrize("criteria", [None, "fine", []])
def test_first_wrong_question(target: Target, criteria: object) -> None:
    wrong = but(SCORE, criteria=criteria)
    ask(target, {"good": NOUL, "b": wrong, "a": wrong}).expect_refusal("questions.b.criteria")


@checks("systemone.refusal.length-last")
def test_length_last(target: Target) -> None:
    questions = {"long": but(NOUL, instructions=TOO_LONG), "wrong": but(SCORE, criteria=[])}
    ask(target, questions).expect_refusal("questions.wrong.criteria")


@checks("systemone.refusal.object")
@captured("systemone/shape-refusal")
def test_shape_of_a_refusal(target: Target, golden: Golden) -> None:
    golden.shape(ask_one(target, but(NOUL, instructions=7)))


@pytest.fixture(scope="session")
def too_long(target: Target) -> Answer:
    """What is said to a request whose second question is longer than any context."""
    return ask(target, {"short": NOUL, "long": but(NOUL, instructions=TOO_LONG)})


@checks("systemone.context.refused")
def test_too_long(too_long: Answer) -> None:
    too_long.expect(400)


@checks("systemone.context.named")
def test_too_long_question(too_long: Answer) -> None:
    too_long.expect_refusal("questions.long", within=True)
