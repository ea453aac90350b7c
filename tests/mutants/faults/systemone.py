"""Requests for decisions that are taken or refused wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.mutants.faults.registry import FAULTS
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import MODEL, Json
from tests.mutants.toy.systemone import SystemOneToy

Condition = Callable[[Json], bool]

NO_ANSWERS = {"model": MODEL, "answers": {}, "usage": {"input_tokens": 1, "output_tokens": 0}}


def question(body: Json) -> Any:
    """The question ``q`` of a request, or nothing."""
    questions = body.get("questions")
    return questions.get("q") if isinstance(questions, dict) else None


def criteria(body: Json) -> Any:
    asked = question(body)
    return asked.get("criteria") if isinstance(asked, dict) else None


def described(body: Json) -> list[Any]:
    """The descriptions or levels in the criteria of ``q``."""
    found = criteria(body)
    if isinstance(found, dict):
        return list(found.values())
    return found if isinstance(found, list) else []


def instructions(body: Json) -> Any:
    asked = question(body)
    return asked.get("instructions") if isinstance(asked, dict) else None


def is_kind(*kinds: str) -> Condition:
    def check(body: Json) -> bool:
        asked = question(body)
        return isinstance(asked, dict) and asked.get("type") in kinds

    return check


def takes(name: str, when: Condition, *clause_ids: str) -> None:
    """Enter a server that takes a kind of request that is to be refused."""

    class Lax(SystemOneToy):
        def check_request(self, body: Json) -> None:
            if not when(body):
                super().check_request(body)

        def decide(self, body: Json) -> Json:
            return NO_ANSWERS if when(body) else super().decide(body)

    Lax.__name__ = f"Takes_{name}"
    FAULTS[Lax] = frozenset(clause_ids)


def refuses(name: str, when: Condition, *clause_ids: str) -> None:
    """Enter a server that refuses a kind of request that is to be taken."""

    class Strict(SystemOneToy):
        def check_request(self, body: Json) -> None:
            super().check_request(body)
            if when(body):
                raise Refused(400, "not here", "questions")

    Strict.__name__ = f"Refuses_{name}"
    FAULTS[Strict] = frozenset(clause_ids)


takes(
    "missing_fields",
    lambda body: not {"model", "state", "questions"} <= set(body),
    "systemone.model.required",
    "systemone.state.required",
    "systemone.questions.required",
)
takes(
    "mistyped_fields",
    lambda body: (
        not isinstance(body.get("model", ""), str)
        or not isinstance(body.get("state", ""), str | dict | list)
        or not isinstance(body.get("questions", {}), dict)
    ),
    "systemone.model.type",
    "systemone.state.type",
    "systemone.questions.type",
    "systemone.refusal.unknown-first",
)
takes(
    "questions_of_any_kind",
    lambda body: question(body) is not None and not is_kind("choice", "score", "noul")(body),
    "systemone.question.type",
    "systemone.kind.required",
    "systemone.kind.type",
    "systemone.kind.unknown",
    "systemone.kind.box",
    "systemone.kind.box-printed",
    "systemone.refusal.sorted",
    "systemone.refusal.unknown-first",
)
takes(
    "any_instructions",
    lambda body: isinstance(instructions(body), int | float),
    "systemone.instructions.type",
    "systemone.refusal.object",
)
takes(
    "criteria_of_any_type",
    lambda body: (
        (is_kind("choice")(body) and not isinstance(criteria(body), dict))
        or (is_kind("score")(body) and not isinstance(criteria(body), list))
        or (is_kind("noul")(body) and isinstance(criteria(body), str | list))
    ),
    "systemone.options.required",
    "systemone.options.type",
    "systemone.levels.required",
    "systemone.levels.type",
    "systemone.noul-criteria.type",
)
takes(
    "numbers_for_texts",
    lambda body: any(isinstance(text, int | float) for text in described(body)),
    "systemone.description.type",
    "systemone.level.type",
    "systemone.noul-criteria.value",
    "systemone.refusal.place",
)
takes(
    "nothing_to_choose",
    lambda body: is_kind("choice", "score")(body) and criteria(body) in ({}, []),
    "systemone.options.none",
    "systemone.levels.none",
)
takes(
    "one_too_many_to_choose",
    lambda body: is_kind("choice", "score")(body) and len(described(body)) == 27,
    "systemone.options.too-many",
    "systemone.levels.too-many",
)
takes(
    "a_request_by_its_first_question",
    lambda body: "bad" in (body.get("questions") or ()),
    "systemone.refusal.whole",
)

OF_OBJECTS = ("systemone.json.spacing",)
refuses(
    "states_of_one_word",
    lambda body: body["state"] == "Late.",
    "systemone.state.string",
)
refuses(
    "empty_states",
    lambda body: body["state"] in ("", {}, []),
    "systemone.state.empty",
)
refuses(
    "objects_as_state",
    lambda body: isinstance(body["state"], dict),
    "systemone.state.object",
    "systemone.json.state",
    "systemone.json.key-order",
    *OF_OBJECTS,
    "systemone.answer.captured",
    "systemone.state.empty",
)
refuses(
    "arrays_as_state",
    lambda body: isinstance(body["state"], list),
    "systemone.state.array",
    "systemone.json.array",
    "systemone.json.non-ascii",
    "systemone.numbers.decimals",
    "systemone.numbers.small",
    "systemone.numbers.large",
    "systemone.numbers.positional",
    "systemone.numbers.whole",
    "systemone.numbers.integers",
    "systemone.numbers.spelling",
    "systemone.numbers.minus-zero",
    "systemone.state.empty",
)
refuses(
    "instructions_that_do_not_ask",
    lambda body: isinstance(instructions(body), str) and instructions(body).endswith("."),
    "systemone.instructions.string",
)
refuses(
    "structured_instructions",
    lambda body: isinstance(instructions(body), list | dict),
    "systemone.instructions.object",
    "systemone.instructions.array",
    "systemone.json.instructions",
    *OF_OBJECTS,
)
refuses(
    "missing_instructions",
    lambda body: isinstance(question(body), dict) and instructions(body) is None,
    "systemone.instructions.null",
    "systemone.instructions.absent",
    "systemone.instructions.null-as-absent",
    "systemone.instructions.empty",
    "systemone.instructions.unasked",
)
refuses(
    "sentences_as_descriptions",
    lambda body: any(isinstance(text, str) and text.endswith(".") for text in described(body)),
    "systemone.description.string",
    "systemone.level.string",
    "systemone.noul-criteria.string",
)
refuses(
    "structured_descriptions",
    lambda body: any(isinstance(text, list | dict) for text in described(body)),
    "systemone.description.object",
    "systemone.description.array",
    "systemone.level.object",
    "systemone.level.array",
    "systemone.noul-criteria.object",
    "systemone.noul-criteria.array",
    "systemone.legend.echo",
    "systemone.legend.decimals",
    "systemone.legend.exponents",
    "systemone.legend.integers",
    "systemone.numbers.decimals",
    "systemone.json.description",
    "systemone.json.level",
    "systemone.json.criterion",
    *OF_OBJECTS,
    "systemone.legend.minus-zero",
    "systemone.numbers.minus-zero",
)
refuses(
    "null_as_first_of_two_descriptions",
    lambda body: len(described(body)) == 2 and described(body)[0] is None,
    "systemone.description.null",
    "systemone.noul-criteria.null",
    "systemone.description.empty",
)
refuses(
    "half_described_nouls",
    lambda body: is_kind("noul")(body) and len(described(body)) == 1,
    "systemone.noul-criteria.one",
    "systemone.json.criterion",
    *OF_OBJECTS,
    "systemone.special",
)
refuses(
    "short_nouls_without_criteria",
    lambda body: is_kind("noul")(body) and criteria(body) is None and instructions(body) == "Late?",
    "systemone.noul-criteria.absent",
)
