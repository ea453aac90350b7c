"""What the routes of a server need: the model's parts, the engine, the server's defaults."""

from __future__ import annotations

from itertools import count

import structlog
import trio
from attrs import define, field

from caldrix.decisions.decider import Decider
from caldrix.decisions.reading import Format
from caldrix.decisions.zero_shot import ZeroShot
from caldrix.engine.engine import Engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.http.images import ImageReader
from caldrix.http.telemetry import Telemetry
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)


@define(eq=False, kw_only=True)
class Service:
    """One served model, for as long as its engine runs."""

    served_name: str
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate | None
    vocab_size: int
    """Token ids the model takes: 0 to ``vocab_size`` - 1."""
    telemetry: Telemetry
    images: ImageReader | None = None
    """None for a model that takes text only."""
    decider: Decider | None = None
    """How the model is asked for decisions, if it was trained for that."""
    sampling: SamplingSettings = field(factory=SamplingSettings)
    """What a request that sets nothing is sampled with."""
    text_threads: trio.CapacityLimiter = field(factory=lambda: trio.CapacityLimiter(4))
    """Requests are parsed, rendered and tokenized off the event loop, at most so many at once."""
    _numbers: count[int] = field(factory=lambda: count(1), init=False)
    _zero_shot: ZeroShot | None = field(default=None, init=False)
    _said_system_moved: bool = field(default=False, init=False)

    def decision_format(self) -> Format:
        """How the model is asked for decisions. Raises UnfitModel if it can't be.

        Not to be called in the event loop: its first call may take a moment.
        """
        if self.decider is not None:
            return self.decider
        if self._zero_shot is None:
            self._zero_shot = ZeroShot.of(self.template, self.tokenizer, self.vocab_size)
        return self._zero_shot

    def next_number(self) -> int:
        """The number for the next answer's id: 1, 2, 3 over all endpoints."""
        return next(self._numbers)

    def note_system_moved(self) -> None:
        """Says in the log, once, that the chat template takes no system message."""
        if not self._said_system_moved:
            self._said_system_moved = True
            _log.warning(
                "system_message_moved",
                reason="the chat template refuses system messages; "
                "their text goes to the top of the first user message",
            )
