"""What /v1/systemone answers, read strictly, and the arithmetic that its numbers keep."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import define, frozen

from caldrix_conformance.answers import Answer, JsonObject, number_in

ROUNDING = 1e-13
"""How far two ways to add up the same two dozen 64-bit floats may come apart."""

NOISE = 1e-2
"""How far two readings of one prompt may differ where one reused what another had computed.

In 16-bit floats, that is; the readings of different prompts are mostly further apart, and so are
the counts of their tokens.
"""


@frozen
class Number:
    """A JSON number as it was written."""

    text: str

    def __str__(self) -> str:
        return self.text


def read_exactly(body: bytes) -> Any:
    """The JSON value in ``body``, its numbers with all their digits. ValueError if it is none."""
    return json.loads(body, parse_float=Number, parse_int=Number)


@frozen
class Choice:
    """An answered choice."""

    choice: str
    probabilities: Mapping[str, float]
    confidence: float


@frozen
class Score:
    """An answered score, its probabilities from the first level to the last."""

    score: float
    probabilities: Sequence[float]
    confidence: float


@define(slots=False)
class Decisions:
    """What a whole answer of /v1/systemone says."""

    answer: Answer

    @cached_property
    def body(self) -> JsonObject:
        """The answer's object."""
        return self.answer.expect(200).object

    @property
    def answers(self) -> JsonObject:
        """The answers by their questions' names."""
        answers = self.body.get("answers")
        assert isinstance(answers, dict), f"no object under answers; {self.answer.seen}"
        return answers

    def of(self, name: str) -> JsonObject:
        """The answer to the question ``name``."""
        assert name in self.answers, f"no answer to {name!r}; {self.answer.seen}"
        found = self.answers[name]
        assert isinstance(found, dict), f"the answer to {name!r} is {found!r}"
        return found

    def choice(self, name: str) -> Choice:
        """The answer to a choice."""
        found = self.of(name)
        chosen = found.get("choice")
        assert isinstance(chosen, str), f"the choice is {chosen!r}: {found}"
        return Choice(chosen, self.probabilities(name), number_in(found, "confidence"))

    def score(self, name: str) -> Score:
        """The answer to a score."""
        found, by_index = self.of(name), self.probabilities(name)
        indexes = [str(index) for index in range(len(by_index))]
        assert set(by_index) == set(indexes), f"probabilities of {list(by_index)}"
        probabilities = [by_index[index] for index in indexes]
        return Score(number_in(found, "score"), probabilities, number_in(found, "confidence"))

    def noul(self, name: str) -> float:
        """The answer to a noul."""
        return number_in(self.of(name), "noul")

    def probabilities(self, name: str) -> dict[str, float]:
        """The probabilities in the answer to a choice or a score, in their order."""
        found = self.of(name).get("probabilities")
        assert isinstance(found, dict), f"no object under probabilities: {self.of(name)}"
        assert found, "probabilities is empty"
        return {key: number_in(found, key) for key in found}

    @cached_property
    def exact_legends(self) -> Mapping[str, Any]:
        """The legend of each answer that has one, its numbers with all their digits."""
        self.answers  # noqa: B018  An answer of another shape is told of there.
        answers = read_exactly(self.answer.body)["answers"]
        return {
            name: found["legend"]
            for name, found in answers.items()
            if isinstance(found, dict) and "legend" in found
        }

    @property
    def input_tokens(self) -> int:
        """How many tokens the usage says were read."""
        count = self.usage.get("input_tokens")
        assert type(count) is int, f"usage is {self.usage}"
        return count

    @property
    def output_tokens(self) -> object:
        """How many tokens the usage says were generated."""
        return self.usage.get("output_tokens")

    @property
    def usage(self) -> JsonObject:
        """The counts, by their names."""
        usage = self.body.get("usage")
        assert isinstance(usage, dict), f"no object under usage; {self.answer.seen}"
        return usage

    def reading(self, name: str) -> Sequence[float]:
        """The probabilities in the answer to a question of any type."""
        if "noul" in self.of(name):
            return [self.noul(name)]
        return list(self.probabilities(name).values())

    @property
    def readings(self) -> Mapping[str, Sequence[float]]:
        """The probabilities in each answer."""
        return {name: self.reading(name) for name in self.answers}


def nearly(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two readings of a question are the same, but for `NOISE`."""
    return len(one) == len(other) and all(
        abs(p - q) <= NOISE for p, q in zip(one, other, strict=True)
    )


def same_readings(one: Decisions, other: Decisions) -> bool:
    """Whether every question's probabilities are the same in both, but for `NOISE`."""
    seen, wanted = one.readings, other.readings
    return seen.keys() == wanted.keys() and all(nearly(seen[name], wanted[name]) for name in seen)


def expect_same_prompt(one: Decisions, other: Decisions) -> None:
    """Check that two answers were read from prompts of one text."""
    counts = one.input_tokens, other.input_tokens
    assert counts[0] == counts[1], f"{counts[0]} input tokens, and {counts[1]} in the other form"
    seen, wanted = dict(one.readings), dict(other.readings)
    assert same_readings(one, other), f"read as {seen}, and as {wanted} in the other form"


def sum_tolerance(count: int) -> float:
    """How far the sum of ``count`` probabilities may be from 1.

    A softmax in 32-bit floats rounds each term by some units of 2**-24, and its sum by up to one
    for every term.
    """
    return (count + 8) * 2.0**-23


def likeliest(probabilities: Sequence[float]) -> Sequence[int]:
    """Where the largest is, first to last where several are exactly as large."""
    return [index for index, p in enumerate(probabilities) if p == max(probabilities)]


def choice_confidence(probabilities: Sequence[float]) -> float:
    """How far the best option is above an even guess: 0 for that, 1 for certainty."""
    even = 1 / len(probabilities)
    return 1.0 if even == 1 else max(0.0, (max(probabilities) - even) / (1 - even))


def expected_score(probabilities: Sequence[float]) -> float:
    """The mean level."""
    return sum(index * p for index, p in enumerate(probabilities))


def score_confidence(probabilities: Sequence[float], level: int) -> float:
    """1 less the mean distance from the likeliest ``level``, in units of an even guess's spread.

    That spread is the mean distance of all levels from their middle.
    """
    count = len(probabilities)
    if count == 1:
        return 1.0
    distance = sum(p * abs(index - level) for index, p in enumerate(probabilities))
    spread = sum(abs(index - (count - 1) / 2) for index in range(count)) / count
    return max(0.0, 1 - distance / spread)


def expect_close(what: str, seen: float, wanted: float) -> None:
    """Check a number that follows from others, but for `ROUNDING`."""
    assert abs(seen - wanted) <= ROUNDING, f"{what} is {seen!r}, wanted {wanted!r}"


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')


def spaces_between(body: bytes) -> int:
    """How many spaces and line breaks a JSON text has outside of its strings."""
    return len(re.findall(rb"\s", _STRING.sub(b"", body)))
