"""What guesses a sequence's next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from attrs import frozen


@frozen
class Guess:
    """Draft tokens, and which of its proposer's kinds of guesses they are."""

    tokens: tuple[int, ...] = ()
    kind: int = 0
    """Guesses of one kind are about equally often right: those of a longer match, for example."""


class Proposer(Protocol):
    """Guesses how one sequence goes on. The engine's thread alone calls it."""

    @property
    def kinds(self) -> int:
        """How many kinds of guesses there are, 0 to ``kinds`` - 1."""
        ...

    def begin(self) -> None:
        """Another sequence follows, of which nothing is known yet."""
        ...

    def read(self, tokens: Sequence[int]) -> None:
        """Takes in what is known of the sequence, all of it; it only ever grows at its end.

        Called while a prompt is computed slice by slice, so that a long one is read in pieces.
        """
        ...

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        """At most ``most`` tokens that may follow ``tokens``, the whole sequence so far."""
        ...
