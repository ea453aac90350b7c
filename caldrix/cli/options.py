"""What the flags of `serve` and `run` mean: shared readings of their values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Literal, TypeAlias

import attrs
import cattrs
from attrs import frozen
from cyclopts import Parameter, Token

from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.sampling_ranges import SAMPLING_RANGES, OutOfRange
from caldrix.errors import Refusal

_WHOLE = re.compile(r"[+-]?[0-9]{1,100}", re.ASCII)


def _read_whole(kind: object, tokens: Sequence[Token]) -> int:
    """A whole number; cyclopts itself would round another."""
    text = tokens[0].value
    if _WHOLE.fullmatch(text):
        return int(text)
    raise ValueError(f"it must be a whole number, got {text}")


Whole: TypeAlias = Annotated[int, Parameter(converter=_read_whole)]
"""The type of a flag that counts something."""
DtypeFlag: TypeAlias = Literal["auto", "f32", "bf16", "q8_0", "q4_1"]
KvDtypeFlag: TypeAlias = Literal["auto", "f16", "f32"]

_BYTES = re.compile(r"[0-9]{1,18}")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([KMGT])(I?B)?", re.ASCII | re.IGNORECASE)
_POWERS = {"K": 1, "M": 2, "G": 3, "T": 4}


def read_threads(text: str) -> int | None:
    """``auto`` (None) or a number of threads. Raises Refusal."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refusal(f"--threads must be auto or a whole number of at least 1, got {text}")
    return int(text)


def read_size(flag: str, text: str) -> int:
    """A size in bytes: a number of them, or one with a unit.

    K, M, G and T are powers of 1024, alone or with iB; with B they are powers of 1000. Raises
    Refusal for anything else, and for less than a byte.
    """
    if match := _SIZE.fullmatch(text):
        number, unit, ending = match.groups()
        base = 1000 if (ending or "").upper() == "B" else 1024
        size = int(Fraction(number) * base ** _POWERS[unit.upper()])
    else:
        size = int(text) if _BYTES.fullmatch(text) else 0
    if size > 0:
        return size
    raise Refusal(f"{flag} must be a size such as 500M, 2G or 1.5GiB, or bytes, got {text}")


def check_positive(flag: str, value: int | None, *, least: int = 1) -> None:
    """Refuses a number that is given and below ``least``. Raises Refusal."""
    if value is not None and value < least:
        raise Refusal(f"{flag} must be a whole number of at least {least}, got {value}")


def check_text(flag: str, value: str | None) -> None:
    """Refuses a text with bytes that are no characters. Raises Refusal."""
    if value is not None and any("\ud800" <= character <= "\udfff" for character in value):
        raise Refusal(f"{flag} is not valid text in this terminal's encoding")


@Parameter(name="*")
@frozen
class SamplingFlags:
    """The sampling fields as flags, in the ranges that requests have."""

    temperature: float | None = None
    """0 is greedy, and the default."""
    top_k: Whole | None = None
    """Keep so many of the best tokens; 0, the default, keeps all."""
    top_p: float | None = None
    """Keep the best tokens that together have this probability; 1, the default, keeps all."""
    min_p: float | None = None
    """Keep tokens with at least this part of the best one's probability; 0, the default, is off."""
    repetition_penalty: float | None = None
    """Above 1 makes tokens that were there already less likely; 1, the default, is off."""
    seed: Whole | None = None
    """The same seed gives the same text; a fresh one each time if not given."""

    def settings(self) -> SamplingSettings:
        """What the flags ask for; -1 is the default where a request's is. Raises Refusal."""
        settings: dict[str, float] = {}
        for name, value in attrs.asdict(self).items():
            if value is None:
                continue
            try:
                number = SAMPLING_RANGES[name].check(value)
            except OutOfRange as error:
                raise Refusal(f"--{name.replace('_', '-')} {error}") from None
            if not (name in ("seed", "top_k") and number == -1):
                settings[name] = number
        return cattrs.structure(settings, SamplingSettings)
