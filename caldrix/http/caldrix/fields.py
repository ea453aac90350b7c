"""The rules of single fields: which values each takes, and how a refusal words it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from caldrix.engine.sampling_ranges import SAMPLING_RANGES, NumberRange, OutOfRange
from caldrix.http.body import LongInteger
from caldrix.http.decoding import Invalid, Rule, spell

MAX_STOPS = 4
MAX_STOP_BYTES = 256


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


def _ranged(allowed: NumberRange) -> Rule:
    def read(value: object) -> float:
        if allowed.integer and isinstance(value, LongInteger):
            raise Invalid(value.refusal)
        try:
            return allowed.check(value, spell)
        except OutOfRange as error:
            raise Invalid(str(error)) from None

    return Rule(read)


Flag = Annotated[bool, Rule(read_flag)]
String = Annotated[str, Rule(read_string)]
Stop = Annotated[tuple[str, ...], Rule(read_stop)]
TokenCount = Annotated[int, _ranged(NumberRange("an integer >= 1", lambda n: n >= 1, integer=True))]
Temperature = Annotated[float, _ranged(SAMPLING_RANGES["temperature"])]
TopK = Annotated[int, _ranged(SAMPLING_RANGES["top_k"])]
TopP = Annotated[float, _ranged(SAMPLING_RANGES["top_p"])]
MinP = Annotated[float, _ranged(SAMPLING_RANGES["min_p"])]
RepetitionPenalty = Annotated[float, _ranged(SAMPLING_RANGES["repetition_penalty"])]
Seed = Annotated[int, _ranged(SAMPLING_RANGES["seed"])]
