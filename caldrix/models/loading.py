"""From a checkpoint to a model that runs: tokenizer, chat template, Program, executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import Executor, Lane, LaneOptions
from caldrix.models.program import Program
from caldrix.models.registry import bind
from caldrix.text.template import ChatTemplate
from caldrix.text.template_files import template_of_directory, template_of_gguf
from caldrix.text.tokenizer import Tokenizer
from caldrix.weights.checkpoint import AnyCheckpoint, open_checkpoint
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.progress import SILENT, Progress

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
    """Requests computed at the same time."""
    prefix_rows: int = 0
    """Rows beside those, for prefixes that prompts share."""
    snapshots: int = 0
    """Rows whose memory snapshots may take beside all these."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of all rows' states and of snapshots, when they are full."""
        return (self.rows + self.prefix_rows + self.snapshots) * self.executor.row_bytes


@contextmanager
def load_model(
    path: Path,
    *,
    lane: Lane,
    context: int | None = None,
    rows: int = 1,
    prefix_rows: int = 0,
    snapshots: Callable[[Program], int] = lambda program: 0,
    threads: int | None = None,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    weight_budget: int | None = None,
    longest: int = DEFAULT_CONTEXT,
    reserved: int = 0,
    progress: Progress = SILENT,
) -> Iterator[TextModel]:
    """The model of a checkpoint, running on a lane while the block lasts.

    What the options mean is said in `LaneOptions`; ``snapshots`` may depend on the Program, and
    without a ``context`` it is the one that the model was trained for, up to ``longest``.
    ``progress`` is told nothing once the block is entered. Raises a Refusal that names what is
    wrong with the files or the options.
    """
    with open_checkpoint(path) as checkpoint:
        bound = bind(checkpoint)
        if prefix_rows and bound.program.states:
            raise UnsupportedModel(
                f"a {bound.program.family} model keeps states that cannot go back to where two "
                "prompts part, so it shares no prefixes; leave out --prefix-rows"
            )
        tokenizer, template = read_text(checkpoint)
        options = LaneOptions(
            context=_context(bound.program, context, longest),
            rows=rows + prefix_rows,
            snapshots=snapshots(bound.program),
            threads=threads,
            dtype=dtype,
            kv_dtype=kv_dtype,
            weight_budget=weight_budget,
            reserved=reserved,
            progress=progress,
        )
        with lane.compile(bound.program, bound.weights, options) as executor:
            yield TextModel(
                tokenizer=tokenizer,
                template=template,
                program=bound.program,
                executor=executor,
                context=options.context,
                rows=rows,
                prefix_rows=prefix_rows,
                snapshots=options.snapshots,
            )


def read_text(checkpoint: AnyCheckpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    """A checkpoint's tokenizer, and its chat template where it has one."""
    if isinstance(checkpoint, GgufCheckpoint):
        tokenizer = Tokenizer.from_gguf(checkpoint.metadata)
        source = template_of_gguf(checkpoint.metadata)
    else:
        tokenizer = Tokenizer.from_directory(checkpoint.path)
        source = template_of_directory(checkpoint.path)
    if source is None:
        return tokenizer, None
    template = ChatTemplate(source, tokenizer.bos_token or "", tokenizer.eos_token or "")
    return tokenizer, template


def _context(program: Program, asked: int | None, longest: int) -> int:
    if asked is None:
        return min(program.max_context, longest)
    if asked > program.max_context:
        raise UnsupportedModel(
            f"a context of {asked} tokens was asked for, and the model was trained for "
            f"{program.max_context}; ask for at most that"
        )
    return asked
