"""From generated tokens to the text that may be sent: whole characters, and no stop string.

Tokens end where they like: inside a character, inside a stop. The assembler joins them, so that
the text sent piece by piece is the text computed whole, for every way of cutting it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from caldrix.text.stops import StopMatcher
from caldrix.text.utf8 import Utf8Assembler


class TokenBytes(Protocol):
    """What the assembler asks of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that ``token_id`` adds to a text."""
        ...


class TextAssembler:
    """Assembles the text of one generation, up to the first of ``stops``.

    ``push`` gives the text that is ready after each token. A generation that ends before a stop
    is closed with ``finish``, which gives the rest.
    """

    def __init__(self, tokenizer: TokenBytes, stops: Sequence[str] = ()) -> None:
        self._tokenizer = tokenizer
        self._utf8 = Utf8Assembler()
        self._stops = StopMatcher(stops)

    @property
    def stopped(self) -> bool:
        """Whether a stop string has ended the text."""
        return self._stops.matched is not None

    def push(self, token_id: int) -> str:
        """Take the next generated token; return the text that is ready now, maybe "".

        Raises ``RuntimeError`` once a stop has ended the text.
        """
        return self._stops.push(self._utf8.push(self._tokenizer.token_bytes(token_id)))

    def finish(self) -> str:
        """End the generation: return the text still held back, "" after a stop.

        An unfinished character becomes U+FFFD, which may itself complete a stop.
        """
        if self.stopped:
            return ""
        text = self._stops.push(self._utf8.flush())
        return text + self._stops.flush()
