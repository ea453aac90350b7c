"""What is timed: computing a prompt, and decoding at a depth."""

from __future__ import annotations

import time
from typing import Protocol

from attrs import frozen

from caldrix.bench.subject import Subject, random_tokens
from caldrix.engine.sampling import Sampler, SamplingSettings


@frozen
class Timing:
    """One run of a case."""

    seconds: float
    """For all of the case's tokens."""
    first_token: float | None = None
    """Seconds from a prompt to the first token picked after it; None where none was picked."""


class Case(Protocol):
    """A piece of work that can be timed again and again."""

    @property
    def name(self) -> str:
        """The field's short name: pp (prompt processing), tg (token generation)."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens of each sequence that are timed."""
        ...

    @property
    def depth(self) -> int:
        """Positions that each sequence holds before."""
        ...

    @property
    def sequences(self) -> int:
        """Sequences computed together."""
        ...

    def run(self, subject: Subject) -> Timing:
        """Does the work once."""
        ...


def positions(case: Case) -> int:
    """Positions that a sequence must have."""
    return case.depth + case.tokens


def rate(case: Case, timing: Timing) -> float:
    """Tokens a second, of all sequences together."""
    return case.tokens * case.sequences / timing.seconds


@frozen
class Prefill:
    """pp: a prompt of ``tokens`` tokens, and the first token picked after it."""

    tokens: int = 512
    depth: int = 0
    sequences: int = 1

    @property
    def name(self) -> str:
        """``pp``."""
        return "pp"

    def run(self, subject: Subject) -> Timing:
        """Times the prompt up to its last token's logits, and up to the greedy pick from them."""
        prompt = random_tokens(subject.vocab_size, (1, self.tokens))
        began = time.perf_counter()
        logits = subject.start(prompt)
        computed = time.perf_counter()
        Sampler(SamplingSettings(), prompt[0].tolist()).pick(logits[-1])
        return Timing(computed - began, time.perf_counter() - began)


@frozen
class Decode:
    """tg: one token after the other, from a ``depth`` on; tg8: of 8 sequences in each step."""

    depth: int = 32
    tokens: int = 64
    sequences: int = 1

    @property
    def name(self) -> str:
        """``tg`` and, for several sequences, their number."""
        return "tg" if self.sequences == 1 else f"tg{self.sequences}"

    def run(self, subject: Subject) -> Timing:
        """Times the steps, each with its logits, after an untimed prompt of ``depth`` tokens.

        What is decoded is given, not picked.
        """
        tokens = random_tokens(subject.vocab_size, (self.sequences, self.depth + self.tokens))
        subject.start(tokens[:, : self.depth])
        following = tokens[:, self.depth :].T.copy()
        began = time.perf_counter()
        for step in following:
            subject.decode(step)
        return Timing(time.perf_counter() - began)
