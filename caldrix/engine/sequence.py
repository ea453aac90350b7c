"""One request inside the engine: its tokens, and how far they are computed.

What is wanted of a request tells its kind: tokens that go on after its prompt (`generation`), or
the logits that follow the prompt (`reading`). Rows, steps and failures are the same for all.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Sequence as SequenceOf

import numpy as np
import trio

from caldrix.engine.kept import Kept
from caldrix.engine.rows import Row
from caldrix.engine.telemetry import Timeline
from caldrix.errors import CaldrixError
from caldrix.models.draw import Draw
from caldrix.models.lane import Features, Slice
from caldrix.weights.tensor import Float32


class Sequence(ABC):
    """A request's progress: which positions are computed, and whether it has ended.

    The engine's own; a client sees its `Generation` or its `Reading`. The engine's thread makes it
    advance; its reader, in the event loop, sees what came from then on, and is woken separately.
    """

    def __init__(
        self,
        prompt: SequenceOf[int],
        name: str | None,
        *,
        kept: Kept | None = None,
        features: Features | None = None,
    ) -> None:
        self.name = name
        """What the log calls it where a step fails on it."""
        self.kept = kept
        """What it begins with, to be kept or kept already."""
        self.features = features
        """What stands in for the embeddings of some tokens, which then say too little of it: it
        goes on from no other prompt, and none from it."""
        self.prompt_tokens = len(prompt)
        self.tokens = array("q", prompt)
        """The prompt, and what was generated after it."""
        self.timeline = Timeline()
        self.arrival = 0
        """Its place in the order in which sequences were admitted."""
        self.row: Row | None = None
        self.isolated = False
        """Its next token is computed in no company: a step that it took part in has failed."""
        self.abandoned = False
        self.error: CaldrixError | None = None
        self._news = trio.Event()

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether it ended as it should end."""

    @property
    def ended(self) -> bool:
        """Whether the engine has nothing more to do for it."""
        return self.abandoned or self.complete or self.error is not None

    @property
    def speculates(self) -> bool:
        """Whether its tokens may be guessed ahead."""
        return False

    @property
    def longest_draft(self) -> int:
        """How many tokens may be guessed after those that are known."""
        return 0

    @property
    def generated(self) -> int:
        """Tokens that came out."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be picked."""
        return len(self.tokens) - (0 if self.row is None else self.row.length)

    @property
    def decoding(self) -> bool:
        """Whether all but the last token is computed, and that one is an answer's."""
        return self.missing == 1 and self.generated > 0

    def start(self, row: Row) -> None:
        """Takes a row, which holds a part of the prompt already or none of it."""
        self.row = row
        if self.timeline.started is None:
            self.timeline.started = time.monotonic()
            self.timeline.cached_tokens = row.length

    def next_slice(self, most: int, draft: SequenceOf[int] = ()) -> Slice:
        """The next at most ``most`` tokens to compute, with logits if they are the last ones.

        A ``draft`` of tokens that may follow is computed after the last one, each with its logits.
        """
        assert self.row is not None
        start = self.row.length
        stop = min(len(self.tokens), start + most)
        if self.kept is not None and self.kept.due and start < self.kept.length:
            stop = min(stop, self.kept.length)
        whole = stop == len(self.tokens)
        assert whole or not draft
        tokens = np.array((*self.tokens[start:stop], *draft), np.int64)
        features = None if self.features is None else self.features.within(start, stop)
        wanted = 1 + len(draft) if whole else 0
        return Slice(self.row.number, start, tokens, wanted, features)

    @abstractmethod
    def pick(self, logits: Float32, draft: SequenceOf[int] = ()) -> list[int]:
        """What it takes from each row of ``[1 + len(draft), vocab_size]`` logits: tokens, or none.

        Nobody sees it before `advance`. Raises UnusableLogits.
        """

    def draw(self) -> Draw | None:
        """How the lane is to pick its next token, where a lane does; None leaves it to `pick`."""
        return None

    def take_drawn(self, token: int) -> list[int]:
        """As `pick`, of what the lane picked, for a sequence that gave it a `draw`.

        Raises UnusableLogits.
        """
        raise NotImplementedError

    @abstractmethod
    def advance(self, computed: Slice, picked: SequenceOf[int], drafted: int = 0) -> int:
        """Records a computed slice, and the tokens picked after it if logits were wanted.

        The last ``drafted`` of the slice's tokens were a draft. Returns how many of them are those
        that were picked; the others are as good as not computed.
        """

    def begin_anew(self) -> None:
        """Forgets what its row holds: all is computed again, in no company."""
        assert self.row is not None
        self.row.length = 0
        self.timeline.cached_tokens = 0
        self.isolated = True

    def fail(self, error: CaldrixError) -> None:
        """Ends the sequence with an error that its reader meets after what it has."""
        self.error = error

    async def news(self) -> None:
        """Waits until something may have come."""
        self._news = trio.Event()
        await self._news.wait()

    def wake_reader(self) -> None:
        """Lets the reader look for what has come. Only in the event loop."""
        self._news.set()
