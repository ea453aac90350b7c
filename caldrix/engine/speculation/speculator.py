"""A proposer and its tuner, as the engine uses them: a guess before each step, its outcome after.

The engine verifies a guess with the sequence's own sampler, token by token, so that answers are
those of plain decoding whatever is guessed here.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import attrs
from attrs import frozen

from caldrix.engine.speculation.proposer import Guess, Proposer
from caldrix.engine.speculation.tuner import LONGEST_DRAFT, Tuner


@frozen
class _Unverified:
    """The first token of a guess that was cut off."""

    kind: int
    position: int
    """Its place in the guess."""
    place: int
    """Its place in the sequence, if it is right."""
    token: int


class Speculator:
    """Guesses ahead for one sequence at a time. The engine's thread alone calls it."""

    def __init__(self, proposer: Proposer, tuner: Tuner) -> None:
        self._proposer = proposer
        self._tuner = tuner
        self._asked = False
        self._behind = True
        self._proposing = self._catching_up = 0.0
        self._unverified: _Unverified | None = None

    def begin(self) -> None:
        """Another sequence follows."""
        self._asked = False
        self._unverified = None
        self._behind = True
        self._tuner.drop_trial()
        self._proposer.begin()

    def read(self, tokens: Sequence[int]) -> None:
        """Takes in what is known of the sequence, while its prompt is computed."""
        self._proposer.read(tokens)

    def guess(self, tokens: Sequence[int], most: int) -> Guess:
        """A guess for the next step, of at most ``most`` and at most 8 tokens, perhaps of none.

        ``tokens`` is the whole sequence so far.
        """
        self._look_back(tokens)
        self._asked = True
        self._proposing = self._catching_up = 0.0
        most = min(most, LONGEST_DRAFT)
        if most < 1:
            return Guess()
        if self._proposer.kinds == 1:
            return self._propose(tokens, min(most, self._tuner.choose(0)))
        # Only the guess itself tells its kind, and what of it is worth verifying.
        guess = self._proposer.propose(tokens, most)
        if not guess.tokens:
            return guess
        length = self._tuner.choose(guess.kind)
        if length < len(guess.tokens):
            place = len(tokens) + length
            self._unverified = _Unverified(guess.kind, length, place, guess.tokens[length])
        return attrs.evolve(guess, tokens=guess.tokens[:length])

    def record(self, guess: Guess, accepted: int, seconds: float) -> None:
        """The step took so long, and ``accepted`` of the guess's tokens were right.

        A step before which no guess was asked for, such as a prompt's, tells nothing.
        """
        if self._asked:
            self._asked = False
            self._tuner.record(
                guess.kind,
                len(guess.tokens),
                accepted,
                seconds,
                proposing=self._proposing,
                catching_up=self._catching_up,
            )

    def _look_back(self, tokens: Sequence[int]) -> None:
        """Whether the first token that was not worth verifying was right, now that it is known.

        If the tokens before it were: then the model's own is the last of the sequence.
        """
        if self._unverified is not None and self._unverified.place == len(tokens) - 1:
            missed = self._unverified
            self._tuner.watch(missed.kind, missed.position, tokens[-1] == missed.token)
        self._unverified = None

    def _propose(self, tokens: Sequence[int], length: int) -> Guess:
        """A guess of a length that was chosen, with its time taken."""
        if not length:
            self._behind = True
            return Guess()
        began = time.perf_counter()
        if self._behind:
            self._proposer.read(tokens)
            self._behind = False
        caught_up = time.perf_counter()
        guess = self._proposer.propose(tokens, length)
        self._catching_up = caught_up - began
        self._proposing = time.perf_counter() - caught_up
        return guess
