"""A toy that guesses ahead: n-gram lookup, and a check of each guess by the toy's own model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import ClassVar

from attrs import define, field, frozen

from caldrix_conformance.capabilities import Capability
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.server import Json, right
from tests.mutants.toy.telemetry import ObservedToy

DRAFT = 4
SHORTEST, LONGEST = 1, 4
"""Lengths of suffix that are looked up."""


@define
class Guesses:
    """How many tokens of an answer were proposed and accepted."""

    proposed: int = 0
    accepted: int = 0


@frozen
class GuessedPrompt(Prompt):
    """A prompt whose answer may be guessed ahead, and how that went."""

    guesses: Guesses | None = field(default=None, eq=False)


@right
@define
class SpeculatingToy(ObservedToy):
    """Greedy answers run with guesses, sampled ones without."""

    lacks: ClassVar[frozenset[Capability]] = ObservedToy.lacks - {Capability.SPECULATION}

    def speculates(self, body: Json) -> bool:
        return self.sampling(body).temperature == 0

    def prompt(self, path: str, body: Json) -> Prompt:
        plain = super().prompt(path, body)
        guesses = Guesses() if self.speculates(body) else None
        return GuessedPrompt(plain.ids, plain.text, plain.counted, guesses)

    def tokens(self, prompt: Prompt, body: Json) -> Iterator[int]:
        plain = super().tokens(prompt, body)
        if not isinstance(prompt, GuessedPrompt) or prompt.guesses is None:
            yield from plain
            return
        made: list[int] = []
        known: list[int] = []
        while True:
            draft = self.propose([*prompt.ids, *made], self.cap(body) - len(made) - 1)
            known += islice(plain, max(len(draft) + 1 - len(known), 0))
            accepted = self.verify(draft, known)
            prompt.guesses.proposed += len(draft)
            prompt.guesses.accepted += accepted
            step = self.step(draft, known, accepted)
            known = known[len(step) :]
            made += step
            yield from step

    def propose(self, ids: Sequence[int], most: int) -> list[int]:
        """What came after the last place where the ids end as they do now."""
        for length in range(LONGEST, SHORTEST - 1, -1):
            suffix = list(ids[-length:])
            for start in range(len(ids) - length - 1, -1, -1):
                if list(ids[start : start + length]) == suffix:
                    return list(ids[start + length :][: max(min(DRAFT, most), 0)])
        return []

    def verify(self, draft: Sequence[int], plain: Sequence[int]) -> int:
        """How many tokens of the draft are those of plain decoding."""
        agreed = 0
        while agreed < len(draft) and draft[agreed] == plain[agreed]:
            agreed += 1
        return agreed

    def step(self, draft: Sequence[int], plain: Sequence[int], accepted: int) -> list[int]:
        """The accepted guesses, and the token that the check gives behind them."""
        return [*draft[:accepted], plain[accepted]]

    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        usage = super().usage(prompt, ids)
        guesses = prompt.guesses if isinstance(prompt, GuessedPrompt) else None
        if guesses is None or not guesses.proposed:
            return usage
        return usage | {"speculative": self.told(guesses)}

    def told(self, guesses: Guesses) -> Json:
        return {"proposed": guesses.proposed, "accepted": guesses.accepted}
