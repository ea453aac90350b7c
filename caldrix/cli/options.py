"""What the flags of `serve` and `run` mean: shared readings of their values."""

from __future__ import annotations

from collections.abc import Mapping

import cattrs

from caldrix.engine.sampling import SamplingSettings
from caldrix.errors import Refusal
from caldrix.http.caldrix.fields import SAMPLING_RULES
from caldrix.http.decoding import Invalid


def read_threads(text: str) -> int | None:
    """``auto`` (None) or a number of threads. Raises Refusal."""
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refusal(f"--threads must be auto or a whole number of at least 1, got {text}")
    return int(text)


def read_positive(flag: str, value: int | None, *, least: int = 1) -> int | None:
    """A whole number that is at least ``least``, or None where the flag is absent."""
    if value is not None and value < least:
        raise Refusal(f"{flag} must be a whole number of at least {least}, got {value}")
    return value


def sampling_settings(flags: Mapping[str, float | None]) -> SamplingSettings:
    """Sampling settings from flags by field name, in the ranges that requests have.

    None leaves the default; a seed or top-k of -1 means the default too. Raises Refusal.
    """
    settings: dict[str, float] = {}
    for name, value in flags.items():
        if value is None:
            continue
        try:
            number = SAMPLING_RULES[name].check(value)
        except Invalid as error:
            raise Refusal(f"--{name.replace('_', '-')} {error.message}") from None
        if not (name in ("seed", "top_k") and number == -1):
            settings[name] = number
    return cattrs.structure(settings, SamplingSettings)
