"""An executor whose next tokens follow a script, and can wait or fail where a test wants it to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from caldrix.models.lane import LaneError, Slice
from caldrix.weights.tensor import Float32

Script = Callable[[Sequence[int], Sequence[int]], int]
"""From a row's prompt and what was generated after it to the next token."""

_GATE_TIMEOUT = 15.0
_STEP = 0.0002
"""Seconds that a step takes beyond its own work."""


def reply(tokens: Sequence[int], end: int) -> Script:
    """The script that answers every prompt with ``tokens`` and then ``end``, for ever."""

    def script(prompt: Sequence[int], generated: Sequence[int]) -> int:
        return tokens[len(generated)] if len(generated) < len(tokens) else end

    return script


def endless(token: int) -> Script:
    """The script that says ``token`` for ever."""
    return lambda prompt, generated: token


class ScriptedExecutor:
    """Gives the script's token the best logit by far.

    While ``gate`` is clear a step waits in the worker thread; ``fail_at`` names the steps,
    counted from 1, that raise LaneError.
    """

    def __init__(self, script: Script, vocab_size: int, *, fail_at: Sequence[int] = ()) -> None:
        self.steps = 0
        self.rows_seen: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self._script = script
        self.vocab_size = vocab_size
        self._fail_at = frozenset(fail_at)
        self._tokens: dict[int, list[int]] = {}
        self._prompts: dict[int, list[int]] = {}

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.steps += 1
        # A lane, too, lets go of the GIL while it computes.
        time.sleep(_STEP)
        assert self.gate.wait(_GATE_TIMEOUT), "a test left the gate closed"
        if self.steps in self._fail_at:
            raise LaneError(f"the script fails step {self.steps}")
        logits = np.zeros((sum(item.wanted for item in slices), self.vocab_size), np.float32)
        picks = [pick for item in slices for pick in self._picks(item)]
        logits[np.arange(len(picks)), picks] = 50.0
        return logits

    def _picks(self, item: Slice) -> list[int]:
        """The next token, if the slice wants one."""
        self.rows_seen.add(item.row)
        tokens = self._tokens.get(item.row, [])[: item.start] + item.tokens.tolist()
        self._tokens[item.row] = tokens
        if item.start == 0:
            self._prompts.pop(item.row, None)
        if not item.wanted:
            return []
        prompt = self._prompts.setdefault(item.row, tokens)
        return [self._script(prompt, tokens[len(prompt) :])]
