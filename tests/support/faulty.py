"""A model whose tokens depend on all before them, and lanes that fail where a test wants it."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Literal

import numpy as np

from caldrix.models.lane import LaneError, LaneLost, Slice
from caldrix.weights.tensor import Float32
from tests.support import miniature
from tests.support.scripted import ScriptedExecutor

LETTERS = miniature.ids("abcdefghijklmnopqrstuvwxyz")
POISON = miniature.ids("!")[0]
"""The first token of the prompts that a lane fails on."""

Fault = Literal["raises", "gives no numbers", "is lost"]


def letter(prompt: Sequence[int], generated: Sequence[int]) -> int:
    """The next token after all of these: one of another prompt, or out of place, shows."""
    digest = zlib.crc32(array("q", [*prompt, *generated]).tobytes())
    return LETTERS[digest % len(LETTERS)]


def answer_to(prompt: Sequence[int], tokens: int) -> str:
    """The text of so many tokens."""
    generated: list[int] = []
    for _ in range(tokens):
        generated.append(letter(prompt, generated))
    return miniature.tokenizer().decode(generated)


def faultless() -> ScriptedExecutor:
    """The model on a lane that does not fail."""
    return ScriptedExecutor(letter, miniature.tokenizer().vocab_size)


class FaultyExecutor(ScriptedExecutor):
    """Has its fault whenever it computes ``position`` of a prompt that begins with `POISON`."""

    def __init__(self, fault: Fault, position: int) -> None:
        super().__init__(letter, miniature.tokenizer().vocab_size)
        self._fault = fault
        self._position = position
        self._poisoned: set[int] = set()

    def step(self, slices: Sequence[Slice]) -> Float32:
        for item in slices:
            if item.start == 0:
                self._poisoned.discard(item.row)
                if item.tokens[0] == POISON:
                    self._poisoned.add(item.row)
        hit = [self._is_hit(item) for item in slices]
        self.fails = any(hit) and self._fault == "raises"
        if any(hit) and self._fault == "is lost":
            raise LaneLost("the device is gone")
        logits = super().step(slices)
        wanted = [item.wanted for item in slices]
        logits[np.repeat(hit, wanted)] = np.nan
        return logits

    def _is_hit(self, item: Slice) -> bool:
        return item.row in self._poisoned and item.start + len(item.tokens) > self._position


class FailsInCompany(ScriptedExecutor):
    """Raises in its first step of several rows from the one of a number on."""

    def __init__(self, step: int) -> None:
        super().__init__(letter, miniature.tokenizer().vocab_size)
        self._step = step
        self.failed = False

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.fails = not self.failed and len(slices) > 1 and self.steps + 1 >= self._step
        self.failed |= self.fails
        return super().step(slices)


class CopiesNothing(ScriptedExecutor):
    """Raises where one row is to be made of another."""

    def __init__(self) -> None:
        super().__init__(letter, miniature.tokenizer().vocab_size)
        self.refused = 0

    def copy_row(self, source: int, target: int, length: int) -> None:
        self.refused += 1
        raise LaneError(f"row {source} cannot be copied")
