"""Waiting for what a server may do only after an answer's last byte, such as counting it."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 1.0
"""Seconds in which it must be done."""

_PAUSE = 0.02
"""Seconds between two looks."""


def eventually(look: Callable[[], bool]) -> bool:
    """Whether ``look`` becomes true within PATIENCE."""
    end = time.monotonic() + PATIENCE
    while not look():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True
