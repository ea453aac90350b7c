"""From a checkpoint to a model that runs: tokenizer, chat template, Program, executor."""

from __future__ import annotations

from attrs import frozen

from caldrix.models.lane import Executor
from caldrix.models.program import Program
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer


@frozen(eq=False)
class TextModel:
    """All that is needed to serve one text model, with its executor running."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    program: Program
    executor: Executor
    context: int
    """Positions a row holds: prompt and answer together."""
    rows: int
