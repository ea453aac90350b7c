"""The flags of `serve` and `run` that say whether, and how, tokens are guessed ahead."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen
from cyclopts import Parameter

from caldrix.cli.options import Whole
from caldrix.engine.speculation.ngram import LONGEST_SUFFIX, SuffixLengths
from caldrix.engine.speculation.settings import SpeculationMode, SpeculationSettings
from caldrix.engine.speculation.tuner import LONGEST_DRAFT
from caldrix.errors import Refusal

_LENGTHS = re.compile(r"([0-9]{1,2}):([0-9]{1,2})", re.ASCII)

_MODES_THAT_USE: Mapping[str, tuple[SpeculationMode, ...]] = {
    "--draft": ("draft", "auto"),
    "--draft-tokens": ("draft", "ngram", "auto"),
    "--ngram": ("ngram", "auto"),
    "--speculation-memory": ("draft", "ngram", "auto"),
}


@Parameter(name="*")
@frozen
class SpeculationFlags:
    """How tokens are guessed ahead, several of which one pass over the weights then verifies."""

    speculate: SpeculationMode = "off"
    """draft asks a second, smaller model; ngram looks the text up in itself; auto takes the draft
    if one is named, and turns itself off where the others are refused."""
    draft: str | None = None
    """The second model, by any name that a model has; it must have the model's vocabulary."""
    draft_tokens: Whole | None = None
    """Guess so many tokens a step, 1 to 8; tuned while running if not given."""
    ngram: str | None = None
    """Shortest and longest text to look up, in tokens, 1:1 to 8:8; 2:4 if not given."""
    speculation_memory: Path | None = None
    """A file that keeps what the tuning has learned from one run to the next."""

    def settings(self) -> SpeculationSettings:
        """What the flags ask for. Raises Refusal, also for a flag that the mode has no use for."""
        given = {
            "--draft": self.draft,
            "--draft-tokens": self.draft_tokens,
            "--ngram": self.ngram,
            "--speculation-memory": self.speculation_memory,
        }
        for flag, modes in _MODES_THAT_USE.items():
            if given[flag] is not None and self.speculate not in modes:
                raise Refusal(
                    f"{flag} is of no use with --speculate {self.speculate}; leave it out, or "
                    f"choose --speculate {_either(modes)}"
                )
        if self.speculate == "draft" and self.draft is None:
            raise Refusal("--speculate draft needs a second model; name it with --draft")
        if self.draft_tokens is not None and not 1 <= self.draft_tokens <= LONGEST_DRAFT:
            raise Refusal(f"--draft-tokens must be 1 to {LONGEST_DRAFT}, got {self.draft_tokens}")
        return SpeculationSettings(
            mode=self.speculate,
            draft=self.draft,
            draft_tokens=self.draft_tokens,
            ngram=SuffixLengths() if self.ngram is None else _read_lengths(self.ngram),
            memory=self.speculation_memory,
        )


def _read_lengths(text: str) -> SuffixLengths:
    match = _LENGTHS.fullmatch(text)
    shortest, longest = map(int, match.groups()) if match else (0, 0)
    if not 1 <= shortest <= longest <= LONGEST_SUFFIX:
        raise Refusal(
            "--ngram must be the shortest and the longest text to look up, such as 2:4, within "
            f"1:{LONGEST_SUFFIX}, got {text}"
        )
    return SuffixLengths(shortest, longest)


def _either(modes: tuple[SpeculationMode, ...]) -> str:
    *others, last = modes
    return f"{', '.join(others)} or {last}"
