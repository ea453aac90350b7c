"""The root of caldrix's own errors.

Every error that is meant for a person carries one readable sentence. Layers derive their own few
types from these two; anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations


class CaldrixError(Exception):
    """A failure that caldrix names; ``str(error)`` is one sentence for a person."""


class Refusal(CaldrixError):
    """Something asked for at start cannot be done: the command line ends with exit status 2.

    The message names the thing at fault and says what to do.
    """


def quoted(value: object, limit: int = 60) -> str:
    """``value`` as a message quotes it: its first characters, control characters escaped."""
    if isinstance(value, str):
        return repr(value if len(value) <= limit else value[: limit - 1] + "…")
    shown = repr(value)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
