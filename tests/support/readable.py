"""A lane whose logits are a digest of all the tokens before them, and a tokenizer to ask it by."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence

import numpy as np

from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32
from tests.support import miniature
from tests.support.scripted import ScriptedExecutor, endless

TOKENIZER = miniature.tokenizer("Yes", "No")
"""The miniature one, with every label as one token."""


def logits_after(tokens: Sequence[int], vocab_size: int) -> Float32:
    """``[vocab_size]`` logits that another token, or a token elsewhere, makes others."""
    seed = zlib.crc32(np.array(tokens, np.int64).tobytes())
    return np.random.default_rng(seed).normal(0, 3, vocab_size).astype(np.float32)


class ReadableExecutor(ScriptedExecutor):
    """Gives `logits_after` the row's tokens, and NaN where ``poison`` is one of them.

    With ``alone`` every step of several rows fails.
    """

    def __init__(
        self,
        vocab_size: int = TOKENIZER.vocab_size,
        *,
        poison: int | None = None,
        alone: bool = False,
        fail_at: Sequence[int] = (),
        reproducible: bool = True,
        memory: int | None = None,
    ) -> None:
        super().__init__(
            endless(0), vocab_size, fail_at=fail_at, reproducible=reproducible, memory=memory
        )
        self._poison = poison
        self._alone = alone

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.fails = self._alone and len(slices) > 1
        logits = super().step(slices)
        for row, tokens in zip(logits, self._before_each(slices), strict=True):
            row[...] = logits_after(tokens, self.vocab_size)
            if self._poison in tokens:
                row[...] = np.nan
        return logits

    def _before_each(self, slices: Sequence[Slice]) -> Iterator[Sequence[int]]:
        """All of the tokens before each of the wanted logits."""
        for item in slices:
            tokens = self._rows[item.row].tokens
            for left in reversed(range(item.wanted)):
                yield tokens[: len(tokens) - left]
