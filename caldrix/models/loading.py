"""From a checkpoint to a model that runs: tokenizer, chat template, Program, executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import Executor, Lane, LaneOptions
from caldrix.models.program import Program
from caldrix.models.registry import bind
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer
from caldrix.weights.checkpoint import open_checkpoint

DEFAULT_CONTEXT = 32_768
"""The context where none is asked for, if the model was trained for so much."""


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


@contextmanager
def load_model(
    path: Path,
    *,
    lane: Lane,
    context: int | None = None,
    rows: int = 1,
    threads: int | None = None,
) -> Iterator[TextModel]:
    """The model of a checkpoint, running on a lane while the block lasts.

    Raises a Refusal that names what is wrong with the files or the options.
    """
    with open_checkpoint(path) as checkpoint:
        bound = bind(checkpoint)
        tokenizer = read_tokenizer(checkpoint)
        if tokenizer.vocab_size > bound.program.vocab_size:
            raise UnsupportedModel(
                f"{path.name}: its tokenizer has {tokenizer.vocab_size} tokens, "
                f"its embedding only {bound.program.vocab_size}"
            )
        options = LaneOptions(_context(bound.program, context), rows, threads)
        with lane.compile(bound.program, bound.weights, options) as executor:
            yield TextModel(
                tokenizer=tokenizer,
                template=read_template(checkpoint, tokenizer),
                program=bound.program,
                executor=executor,
                context=options.context,
                rows=rows,
            )


def _context(program: Program, asked: int | None) -> int:
    if asked is None:
        return min(program.max_context, DEFAULT_CONTEXT)
    if asked > program.max_context:
        raise UnsupportedModel(
            f"--context {asked}: the model was trained for {program.max_context} positions"
        )
    return asked
