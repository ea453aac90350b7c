"""Questions that are put to the model otherwise than they were asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.server import Json
from tests.mutants.toy.spelling import MinusZero, Spelled
from tests.mutants.toy.systemone import Row, SystemOneToy


@breaks("systemone.choice.labels")
class LabelsOptionsByName(SystemOneToy):
    def probabilities(self, state: Any, question: Json) -> Sequence[float]:
        if question["type"] != "choice":
            return super().probabilities(state, question)
        ordered = dict(sorted(question["criteria"].items()))
        read = super().probabilities(state, question | {"criteria": ordered})
        by_name = dict(zip(ordered, read, strict=True))
        return [by_name[name] for name in question["criteria"]]


@breaks("systemone.choice.described", "systemone.noul.described", "systemone.special")
class ReadsNoDescriptions(SystemOneToy):
    def options(self, question: Json) -> list[str]:
        if question["type"] == "score":
            return super().options(question)
        criteria = dict.fromkeys(question.get("criteria") or {})
        return super().options(question | {"criteria": criteria})


SPELT = tuple(f"systemone.numbers.{what}" for what in ("decimals", "small", "large", "positional"))


@breaks(
    "systemone.json.state",
    "systemone.json.instructions",
    "systemone.json.description",
    "systemone.json.level",
    "systemone.json.criterion",
    "systemone.json.array",
    "systemone.json.key-order",
)
class WritesSpaces(SystemOneToy):
    separators: ClassVar[tuple[str, str]] = (", ", ": ")


@breaks("systemone.json.key-order", "systemone.json.state")
class SortsKeysOfAState(SystemOneToy):
    def state_text(self, state: Any) -> str:
        ordered = dict(sorted(state.items())) if isinstance(state, dict) else state
        return super().state_text(ordered)


@breaks("systemone.instructions.null-as-absent")
class WritesNullInstructions(SystemOneToy):
    def rows(self, state: Any, question: Json) -> list[Row]:
        given = question.get("instructions", "")
        return super().rows(state, question | {"instructions": "null" if given is None else given})


@breaks("systemone.json.non-ascii")
class EscapesCharacters(SystemOneToy):
    def quoted(self, value: Any) -> str:
        return json.dumps(value)


@breaks("systemone.numbers.spelling", "systemone.numbers.whole", *SPELT)
class KeepsDigitsInPrompts(SystemOneToy):
    def number(self, value: Spelled) -> str:
        return value.text


@breaks("systemone.numbers.small", "systemone.numbers.large")
class ShortensExponents(SystemOneToy):
    def number(self, value: Spelled) -> str:
        return super().number(value).replace("e-0", "e-").replace("e+", "e")


@breaks(
    "systemone.numbers.decimals",
    "systemone.numbers.large",
    "systemone.numbers.positional",
    "systemone.numbers.whole",
)
class RoundsToSixDigits(SystemOneToy):
    def number(self, value: Spelled) -> str:
        return f"{value:g}"


@breaks("systemone.numbers.whole", "systemone.numbers.positional")
class DropsFractionsOfNothing(SystemOneToy):
    def number(self, value: Spelled) -> str:
        return super().number(value).removesuffix(".0")


@breaks("systemone.numbers.integers")
class ReadsIntegersAsFloats(SystemOneToy):
    def quoted(self, value: Any) -> str:
        if type(value) is int and abs(value) > 2**53:
            value = int(float(value))
        return super().quoted(value)


@breaks("systemone.json.spacing")
class SpacingShowsThrough(SystemOneToy):
    def read(self, content_type: str, raw: bytes) -> Json:
        body = super().read(content_type, raw)
        if b" , " in raw and isinstance(body.get("state"), str):
            body["state"] += " "
        return body


@breaks("systemone.special")
class SpellsSpecialTokensOfAState(SystemOneToy):
    def text(self, value: Any) -> str:
        return super().text(value.replace("<|", "< |") if isinstance(value, str) else value)


@breaks("systemone.instructions.empty")
class WritesEmptyInstructions(SystemOneToy):
    def asked(self, question: Json) -> str:
        return "" if question.get("instructions") == "" else super().asked(question)


@breaks("systemone.instructions.unasked")
class AsksNothingOfItsOwn(SystemOneToy):
    def asked(self, question: Json) -> str:
        return super().asked(question) if question.get("instructions") else "Well?"


@breaks("systemone.description.empty")
class WritesEmptyDescriptions(SystemOneToy):
    def described(self, name: str, text: Any) -> str:
        return f"{name}: " if text == "" else super().described(name, text)


@breaks("systemone.noul-criteria.nothing")
class WritesCriteriaOfNothing(SystemOneToy):
    def options(self, question: Json) -> list[str]:
        nothing = question["type"] == "noul" and question.get("criteria", "none") in (None, {})
        return [*super().options(question), *(["null"] if nothing else [])]


@breaks("systemone.numbers.minus-zero")
class ReadsMinusZeroAsItIsWritten(SystemOneToy):
    def quoted(self, value: Any) -> str:
        return "-0" if isinstance(value, MinusZero) else super().quoted(value)
