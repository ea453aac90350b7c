"""An executor whose next tokens follow a script, and can wait or fail where a test wants it to."""

from __future__ import annotations

import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from attrs import define, field, frozen

from caldrix.models.lane import LaneError, PrefillSizes, Slice, Snapshot
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


@define(eq=False)
class _Row:
    """What a row holds, and how much of it is the prompt.

    A lane knows tokens, and not where a prompt ends, so this has to be told from the slices. A
    slice goes on with the row's sequence if all its tokens have their logits wanted and it begins
    after the slice before it did: a generated token, or a draft after one that was rejected. Any
    other belongs to a new prompt, which ends with the first token whose logits are wanted. (So a
    new prompt that is all that the row holds and one token more is taken for the old sequence.)
    """

    tokens: list[int] = field(factory=list)
    prompt: int = 0
    """The prompt's length; 0 while it is not known."""
    last_start: int = 0
    lost: list[int] = field(factory=list)
    """What it held when a step failed: a row that begins with it again goes on with that."""
    lost_prompt: int = 0

    def take(self, item: Slice) -> Iterator[tuple[list[int], list[int]]]:
        """The prompt and what was generated after it, as of each of the wanted tokens."""
        if item.start > len(self.tokens):
            raise LaneError(f"row {item.row} holds {len(self.tokens)} positions: {item}")
        goes_on = item.wanted == len(item.tokens) and item.start > self.last_start
        if not goes_on:
            self.prompt = 0
        self.last_start = item.start
        self.tokens = self.tokens[: item.start] + item.tokens.tolist()
        first = len(self.tokens) - item.wanted + 1
        if item.wanted and not self.prompt:
            again = self.lost and self.lost == self.tokens[: len(self.lost)]
            self.prompt = self.lost_prompt if again else first
            self.lost = []
        for end in range(first, len(self.tokens) + 1):
            yield self.tokens[: self.prompt], self.tokens[self.prompt : end]

    def lose(self) -> None:
        """A step failed: nothing is usable."""
        if self.prompt:
            self.lost, self.lost_prompt = self.tokens, self.prompt
        self.tokens, self.prompt = [], 0


@frozen(eq=False)
class ScriptedSnapshot:
    """See `caldrix.models.lane.Snapshot`."""

    tokens: Sequence[int]

    @property
    def length(self) -> int:
        return len(self.tokens)


class ScriptedExecutor:
    """Gives the script's token the best logit by far, after each token whose logits are wanted.

    While ``gate`` is clear a step waits in the worker thread; ``fail_at`` names the steps,
    counted from 1, that raise LaneError. With ``memory`` a row forgets what lies so many positions
    before its end, as windowed layers do: it goes on from there, or from its beginning. A snapshot
    takes a byte a position.
    """

    row_bytes = 1 << 20
    prefill = PrefillSizes()

    def __init__(
        self,
        script: Script,
        vocab_size: int,
        *,
        fail_at: Sequence[int] = (),
        reproducible: bool = True,
        memory: int | None = None,
    ) -> None:
        self.steps = 0
        self.fails = False
        """Whether steps raise LaneError, whatever ``fail_at`` says."""
        self.tokens_computed = 0
        self.copies: list[tuple[int, int, int]] = []
        """Source, target and length of every `copy_row`."""
        self.snapshots: weakref.WeakSet[ScriptedSnapshot] = weakref.WeakSet()
        """Those that somebody still has."""
        self.snapshots_taken = 0
        self.restored = 0
        """How often one was put into a row."""
        self.rows_seen: set[int] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.vocab_size = vocab_size
        self.reproducible = reproducible
        self.rewinds = memory is None
        self._script = script
        self._fail_at = frozenset(fail_at)
        self._memory = memory
        self._rows: defaultdict[int, _Row] = defaultdict(_Row)

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.steps += 1
        # A lane, too, lets go of the GIL while it computes.
        time.sleep(_STEP)
        assert self.gate.wait(_GATE_TIMEOUT), "a test left the gate closed"
        if self.fails or self.steps in self._fail_at:
            for item in slices:
                self._rows[item.row].lose()
            raise LaneError(f"the script fails step {self.steps}")
        logits = np.zeros((sum(item.wanted for item in slices), self.vocab_size), np.float32)
        picks = [pick for item in slices for pick in self._picks(item)]
        logits[np.arange(len(picks)), picks] = 50.0
        return logits

    def resumable(self, row: int, length: int) -> int:
        length = min(length, len(self._rows[row].tokens))
        return length if self.reproducible and not self._forgot(row, length) else 0

    def copy_row(self, source: int, target: int, length: int) -> None:
        if length > self.resumable(source, length):
            raise LaneError(f"row {source} does not hold {length} positions")
        self.copies.append((source, target, length))
        if source != target:
            self._rows[target] = _Row(self._rows[source].tokens[:length])

    def snapshot(self, row: int, length: int) -> Snapshot:
        if length > self.resumable(row, length):
            raise LaneError(f"row {row} does not hold {length} positions")
        kept = ScriptedSnapshot(self._rows[row].tokens[:length])
        self.snapshots.add(kept)
        self.snapshots_taken += 1
        return kept

    def snapshot_bytes(self, length: int) -> int:
        return length

    def restore(self, snapshot: Snapshot, row: int) -> None:
        assert isinstance(snapshot, ScriptedSnapshot)
        self.restored += 1
        self._rows[row] = _Row(list(snapshot.tokens))

    def _picks(self, item: Slice) -> list[int]:
        """The next token after each one that wants it."""
        self.rows_seen.add(item.row)
        self.tokens_computed += len(item.tokens)
        if item.start and self._forgot(item.row, item.start):
            raise LaneError(f"row {item.row} has forgotten what lies before {item.start}")
        return [
            self._script(prompt, generated) for prompt, generated in self._rows[item.row].take(item)
        ]

    def _forgot(self, row: int, length: int) -> bool:
        held = len(self._rows[row].tokens)
        return self._memory is not None and held - length > self._memory
