"""How the zero-shot reading writes values into its prompts, seen from what it reads there.

A string is taken as it is, so a value that is no string must be read as its text is.
"""

from __future__ import annotations

import json

import pytest

from caldrix_conformance.contracts.caldrix.decisions import expect_same_prompt
from caldrix_conformance.contracts.caldrix.questions import (
    CHOICE,
    NOUL,
    PLACES,
    SCORE,
    Question,
    ask_text,
    but,
    decide_one,
    decide_text,
    expect_written,
)
from caldrix_conformance.endpoints import COMPLETIONS
from caldrix_conformance.marks import checks
from caldrix_conformance.prompts import SPECIAL_TOKENS
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

VALUE = '{"b": ["x, y", 2], "a": {"c": null, "d": true}}'
COMPACT = '{"b":["x, y",2],"a":{"c":null,"d":true}}'

INTEGERS = (7, 9007199254740993, -123456789012345678901234567890)

WRITTEN = [
    row("systemone.json.state", "state", VALUE, COMPACT),
    row("systemone.json.instructions", "instructions", VALUE, COMPACT),
    row("systemone.json.description", "description", VALUE, COMPACT),
    row("systemone.json.level", "level", VALUE, COMPACT),
    row("systemone.json.criterion", "criterion", VALUE, COMPACT),
    row("systemone.json.array", "state", '["a", ["b", 1], {"c": 2}]', '["a",["b",1],{"c":2}]'),
    row("systemone.json.key-order", "state", '{"z":1,"a":2,"m":3}', '{"z":1,"a":2,"m":3}'),
    row("systemone.json.non-ascii", "state", r'["d\u00e9p\u00f4t \ud83d\ude42"]', '["dépôt 🙂"]'),
    row("systemone.numbers.decimals", "level", "[1.50]", "[1.5]"),
    row("systemone.numbers.decimals", "state", "[1.50]", "[1.5]"),
    row("systemone.numbers.decimals", "state", "[0.1000]", "[0.1]"),
    row("systemone.numbers.decimals", "state", "[3.14159265358979323846]", "[3.141592653589793]"),
    row("systemone.numbers.small", "state", "[0.00001]", "[1e-05]"),
    row("systemone.numbers.small", "state", "[1.5E-7]", "[1.5e-07]"),
    row("systemone.numbers.small", "state", "[12e-123]", "[1.2e-122]"),
    row("systemone.numbers.large", "state", "[1e16]", "[1e+16]"),
    row("systemone.numbers.large", "state", "[12345678901234567.0]", "[1.2345678901234568e+16]"),
    row("systemone.numbers.large", "state", "[2E0100]", "[2e+100]"),
    row("systemone.numbers.positional", "state", "[1e-4]", "[0.0001]"),
    row("systemone.numbers.positional", "state", "[1.25e15]", "[1250000000000000.0]"),
    row("systemone.numbers.whole", "state", "[2.0]", "[2.0]"),
    row("systemone.numbers.whole", "state", "[1e2]", "[100.0]"),
    row("systemone.numbers.minus-zero", "state", "[-0]", "[0]"),
    row("systemone.numbers.minus-zero", "level", "[-0]", "[0]"),
    *(row("systemone.numbers.integers", "state", f"[{n}]", f"[{n}]") for n in INTEGERS),
]


@pytest.mark.parametrize(("place", "value", "text"), WRITTEN)
def test_written(target: Target, place: str, value: str, text: str) -> None:
    expect_written(target, place, value, text)


@checks("systemone.instructions.null-as-absent")
@pytest.mark.parametrize("question", [CHOICE, SCORE, NOUL], ids=["choice", "score", "noul"])
def test_null_instructions(target: Target, question: Question) -> None:
    null, absent = (
        decide_one(target, but(question, instructions=value)) for value in (None, ABSENT)
    )
    expect_same_prompt(null, absent)


@checks("systemone.instructions.empty")
@pytest.mark.parametrize("question", [CHOICE, SCORE, NOUL], ids=["choice", "score", "noul"])
def test_empty_instructions(target: Target, question: Question) -> None:
    empty, absent = (
        decide_one(target, but(question, instructions=value)) for value in ("", ABSENT)
    )
    expect_same_prompt(empty, absent)


@checks("systemone.instructions.unasked")
@pytest.mark.parametrize(
    ("question", "what"),
    [(CHOICE, "option"), (SCORE, "level"), (NOUL, "answer")],
    ids=["choice", "score", "noul"],
)
def test_question_without_instructions(target: Target, question: Question, what: str) -> None:
    words = f"Which {what} fits the state best?"
    absent, asked = (
        decide_one(target, but(question, instructions=value)) for value in (ABSENT, words)
    )
    expect_same_prompt(absent, asked)


@checks("systemone.description.empty")
@pytest.mark.parametrize(
    ("question", "name"),
    [(CHOICE, "shipping"), (NOUL, "true"), (NOUL, "false")],
    ids=["choice", "true", "false"],
)
def test_empty_description(target: Target, question: Question, name: str) -> None:
    criteria = {"true": "late", "false": "in time"} if question is NOUL else CHOICE["criteria"]
    empty, null = (
        decide_one(target, but(question, criteria={**criteria, name: value}))
        for value in ("", None)
    )
    expect_same_prompt(empty, null)


@checks("systemone.noul-criteria.nothing")
@pytest.mark.parametrize("nothing", [None, {}], ids=["null", "empty"])
def test_criteria_of_nothing(target: Target, nothing: object) -> None:
    expect_same_prompt(decide_one(target, but(NOUL, criteria=nothing)), decide_one(target, NOUL))


@pytest.fixture(scope="session")
def special(target: Target) -> str:
    """A text that a bare prompt holds as one token, however its letters would be split."""

    def count(text: str) -> int:
        return target.complete(COMPLETIONS, **COMPLETIONS.prompt(text)).usage.prompt_tokens

    for text in SPECIAL_TOKENS:
        if count(text * 8) - count(text * 4) == 4:
            return text
    pytest.skip("the model has none of the special tokens that the suite knows")


@checks("systemone.special")
@pytest.mark.parametrize("place", PLACES)
def test_special(target: Target, special: str, place: str) -> None:
    few, more = (
        decide_text(target, PLACES[place] % json.dumps(special * times)).input_tokens
        for times in (4, 8)
    )
    assert more - few == 4, f"{special} four times more adds {more - few} input tokens"


@checks("systemone.json.spacing")
@pytest.mark.parametrize("place", PLACES)
def test_spacing(target: Target, place: str) -> None:
    tight, loose = '{"b":[1,2],"a":{}}', '{ "b" :\n [ 1 , 2 ],\t"a": { } }'
    seen = [decide_text(target, PLACES[place] % value) for value in (tight, loose)]
    expect_same_prompt(*seen)


@checks("systemone.numbers.spelling")
@pytest.mark.parametrize(
    ("spelled", "again"), [("1.5", "1.50"), ("1e-05", "0.00001"), ("1e16", "10000000000000000.0")]
)
def test_spelling(target: Target, spelled: str, again: str) -> None:
    seen = [decide_text(target, PLACES["state"] % f"[{number}]") for number in (spelled, again)]
    expect_same_prompt(*seen)


@checks("systemone.numbers.overflow")
@pytest.mark.parametrize("number", ["1e999", "-1e400"])
def test_too_large(target: Target, number: str) -> None:
    ask_text(target, PLACES["state"] % f"[{number}]").expect_refusal("state", within=True)
