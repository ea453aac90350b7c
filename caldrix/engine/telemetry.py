"""What a request took: times and token counts, and never a token or a text.

The engine's thread writes them as they come to pass; the layers above read them.
"""

from __future__ import annotations

import time

from attrs import define, field


@define(eq=False)
class Timeline:
    """When a request came to pass, in seconds of `time.monotonic`, and what it counted.

    A time is None until it has come.
    """

    submitted: float = field(factory=time.monotonic)
    started: float | None = None
    """A row was given, and the first step with it begins."""
    first_token: float | None = None
    last_token: float | None = None
    cached_tokens: int = 0
    """Tokens of the prompt that a row held already."""
    proposed_tokens: int = 0
    """Draft tokens that were guessed ahead for it."""
    accepted_tokens: int = 0
    """How many of them were those of plain decoding."""
