"""The rules of single fields: which values each takes, and how a refusal words it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated

from attrs import frozen

from caldrix.http.decoding import Invalid, Rule, spell

MAX_STOPS = 4
MAX_STOP_BYTES = 256


@frozen
class NumberRule:
    """A range of numbers, and the sentence that states it."""

    requirement: str
    accepts: Callable[[float], bool]
    integer: bool = False

    def check(self, value: object) -> float:
        """``value`` as a number, an int if the rule is for integers. Raises Invalid."""
        number = _number(value, integer=self.integer)
        if number is None or not self.accepts(number):
            raise Invalid(f"must be {self.requirement}, got {spell(value)}")
        return number


SAMPLING_RULES: Mapping[str, NumberRule] = {
    "temperature": NumberRule("a finite number >= 0", lambda t: 0 <= t < math.inf),
    "top_k": NumberRule("an integer >= 0, or -1", lambda k: k >= -1, integer=True),
    "top_p": NumberRule("0 < p <= 1", lambda p: 0 < p <= 1),
    "min_p": NumberRule("0 <= p <= 1", lambda p: 0 <= p <= 1),
    "repetition_penalty": NumberRule("a finite number > 0", lambda r: 0 < r < math.inf),
    "seed": NumberRule("a non-negative integer, or -1", lambda s: s >= -1, integer=True),
}

_AT_LEAST_ONE = NumberRule("an integer >= 1", lambda n: n >= 1, integer=True)

NOT_IMPLEMENTED: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_logprobs": (0,),
    "best_of": (1,),
    "logprobs": (False, 0),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
}
"""Features that are refused unless asked for at a value that changes nothing."""


def is_neutral(value: object, neutral: tuple[object, ...]) -> bool:
    """Whether ``value`` is null or one of ``neutral``; true and false are no numbers."""
    return value is None or any(
        value == known and isinstance(value, bool) == isinstance(known, bool) for known in neutral
    )


def read_flag(value: object) -> bool:
    """True or false; null is false."""
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    raise Invalid(f"must be true or false, got {spell(value)}")


def read_string(value: object) -> str:
    """A string."""
    if isinstance(value, str):
        return value
    raise Invalid(f"must be a string, got {spell(value)}")


def read_stop(value: object) -> tuple[str, ...]:
    """The stop strings: one, or an array of up to four; null is none."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (_one_stop(value, ()),)
    if not isinstance(value, list):
        raise Invalid(f"must be a string or an array of strings, got {spell(value)}")
    if len(value) > MAX_STOPS:
        raise Invalid(f"must be one string or up to {MAX_STOPS}, got {len(value)}")
    return tuple(_one_stop(stop, (index,)) for index, stop in enumerate(value))


def _one_stop(value: object, path: tuple[int, ...]) -> str:
    if not isinstance(value, str):
        raise Invalid(f"must be a string, got {spell(value)}", path)
    size = len(value.encode())
    if not 1 <= size <= MAX_STOP_BYTES:
        raise Invalid(f"must be 1 to {MAX_STOP_BYTES} bytes, got {size}", path)
    return value


def _number(value: object, *, integer: bool) -> float | None:
    """The number that ``value`` is, or None; a float where an integer is wanted is none."""
    if isinstance(value, bool) or not isinstance(value, int if integer else int | float):
        return None
    if integer:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf


Flag = Annotated[bool, Rule(read_flag)]
String = Annotated[str, Rule(read_string)]
Stop = Annotated[tuple[str, ...], Rule(read_stop)]
TokenCount = Annotated[int, Rule(_AT_LEAST_ONE.check)]
Temperature = Annotated[float, Rule(SAMPLING_RULES["temperature"].check)]
TopK = Annotated[int, Rule(SAMPLING_RULES["top_k"].check)]
TopP = Annotated[float, Rule(SAMPLING_RULES["top_p"].check)]
MinP = Annotated[float, Rule(SAMPLING_RULES["min_p"].check)]
RepetitionPenalty = Annotated[float, Rule(SAMPLING_RULES["repetition_penalty"].check)]
Seed = Annotated[int, Rule(SAMPLING_RULES["seed"].check)]
