"""Guesses from the text itself: what followed the last time that it stood as it stands now.

The proposer of prompt lookup decoding. It needs no second model, and it is right where a text
repeats itself or its prompt: code, tables, quotations, lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from attrs import field, frozen, validators

from caldrix.engine.speculation.proposer import Guess

LONGEST_SUFFIX = 8
"""Longer suffixes find hardly anything else, and each length costs an entry a token."""


@frozen
class SuffixLengths:
    """Lengths of suffix that are looked up, the longest first."""

    shortest: int = field(default=2, validator=validators.ge(1))
    longest: int = field(default=4, validator=validators.le(LONGEST_SUFFIX))

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(f"no length is from {self.shortest} to {self.longest}")

    def __str__(self) -> str:
        return f"{self.shortest}:{self.longest}"


class NgramProposer:
    """Continues the longest suffix that the sequence had before, as it went on there.

    A token costs an entry for each length of suffix, in time and in memory. See `Proposer`.
    """

    def __init__(self, lengths: SuffixLengths) -> None:
        self._lengths = range(lengths.shortest, lengths.longest + 1)
        self._places: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    @property
    def kinds(self) -> int:
        """A kind for each length of the suffix that was found."""
        return len(self._lengths)

    def begin(self) -> None:
        """Forgets the sequence."""
        self._places.clear()
        self._indexed = 0

    def read(self, tokens: Sequence[int]) -> None:
        """Notes where each suffix of what came before the last token ends.

        The last token's own suffixes follow with the next one: nothing comes after them yet, and
        a search for them has to find the place before.
        """
        places = self._places
        for end in range(self._indexed + 1, len(tokens)):
            for length in self._lengths:
                if length > end:
                    break
                places[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        """What followed the longest suffix at its latest place before; its length is the kind.

        What followed may reach the sequence's end: the text has come round to where it was, and
        the guess goes round again. So a line that repeats is guessed to any length from its second
        time on.
        """
        self.read(tokens)
        for length in reversed(self._lengths):
            if length > len(tokens):
                continue
            place = self._places.get(tuple(tokens[-length:]))
            if place is not None:
                followed = tokens[place : place + most]
                return Guess(tuple(islice(cycle(followed), most)), length - self._lengths[0])
        return Guess()
