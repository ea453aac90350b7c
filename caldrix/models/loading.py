"""From a checkpoint to a model that runs: tokenizer, chat template, Program, executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from attrs import evolve, frozen

from caldrix.models.fields import UnsupportedModel
from caldrix.models.lane import (
    ContextUnavailable,
    Encoder,
    Executor,
    Lane,
    LaneOptions,
    LaneUnavailable,
    PickingExecutor,
)
from caldrix.models.program import Program
from caldrix.models.registry import BoundProgram, BoundTower, bind
from caldrix.models.vision_tower import Tower
from caldrix.text.template import ChatTemplate
from caldrix.text.template_files import template_of_directory, template_of_gguf
from caldrix.text.tokenizer import Tokenizer
from caldrix.weights.checkpoint import AnyCheckpoint, open_checkpoint
from caldrix.weights.gguf import GgufCheckpoint
from caldrix.weights.progress import SILENT, Progress
from caldrix.weights.tensor import Float32

DEFAULT_CONTEXT = 32_768
"""The context where none is asked for, if the model was trained for so much."""
LEAST_CHOSEN_CONTEXT = 2048
"""What it is never made shorter than for the sake of memory: that needs a person to say so."""


@frozen(eq=False)
class Vision:
    """What a model sees with: its tower, and an encoder running."""

    tower: Tower
    encoder: Encoder

    def encode(self, tile: Float32) -> Float32:
        """The features of a tile's ``[3, side, side]`` pixels: a row for each image token.

        Not to be called from two threads at once. Raises LaneError.
        """
        return self.encoder.encode(self.tower.patches(tile))


@frozen(eq=False)
class TextModel:
    """All that is needed to serve one model, with its executor running."""

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
    vision: Vision | None = None
    """None for a model that takes text only."""

    @property
    def picks(self) -> bool:
        """Whether its lane's device picks sampled tokens."""
        return isinstance(self.executor, PickingExecutor) and self.executor.picks

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
    keeps: bool = False,
    threads: int | None = None,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    weight_budget: int | None = None,
    picks: bool = False,
    longest: int = DEFAULT_CONTEXT,
    reserved: int = 0,
    progress: Progress = SILENT,
) -> Iterator[TextModel]:
    """The model of a checkpoint, running on a lane while the block lasts.

    What the options mean is said in `LaneOptions`; without a ``context`` it is the one that the
    model was trained for, up to ``longest`` and to what the memory has room for, where that leaves
    at least `LEAST_CHOSEN_CONTEXT`. With ``keeps`` there are snapshots, if the memory has room for
    as much as a row more. ``progress`` is told nothing once the block is entered. Raises a Refusal
    that names what is wrong with the files or the options.
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
            threads=threads,
            dtype=dtype,
            kv_dtype=kv_dtype,
            weight_budget=weight_budget,
            picks=picks,
            reserved=reserved,
            progress=progress,
        )
        with ExitStack() as stack:
            vision = None
            if bound.tower is not None:
                vision = stack.enter_context(_seeing(bound.tower, lane, options))
                options = _beside(vision.encoder, options)
            options, executor = stack.enter_context(
                _running(bound, lane, options, keeps=keeps, shrinks=context is None)
            )
            yield TextModel(
                tokenizer=tokenizer,
                template=template,
                program=bound.program,
                executor=executor,
                context=options.context,
                rows=rows,
                prefix_rows=prefix_rows,
                # What is computed again in other sums is never kept.
                snapshots=options.snapshots if executor.reproducible else 0,
                vision=vision,
            )


@contextmanager
def _running(
    bound: BoundProgram, lane: Lane, options: LaneOptions, *, keeps: bool, shrinks: bool
) -> Iterator[tuple[LaneOptions, Executor]]:
    """The executor, and what it was compiled for in the end."""
    options = evolve(options, snapshots=int(keeps))
    with ExitStack() as stack:
        executor: Executor | None = None
        while executor is None:
            try:
                executor = stack.enter_context(lane.compile(bound.program, bound.weights, options))
            except LaneUnavailable as refusal:
                options = _less(options, refusal, shrinks=shrinks)
        yield options, executor


def _less(options: LaneOptions, refusal: LaneUnavailable, *, shrinks: bool) -> LaneOptions:
    """What to ask for instead of what was refused. Raises the refusal where that is nothing."""
    if options.snapshots:
        return evolve(options, snapshots=0)
    if not shrinks or not isinstance(refusal, ContextUnavailable):
        raise refusal
    if not LEAST_CHOSEN_CONTEXT <= refusal.fitting < options.context:
        raise refusal
    options.progress.note(
        f"the context is {refusal.fitting} tokens instead of {options.context}, as more does not "
        "fit into memory; --context chooses another"
    )
    return evolve(options, context=refusal.fitting)


@contextmanager
def _seeing(bound: BoundTower, lane: Lane, options: LaneOptions) -> Iterator[Vision]:
    with lane.compile_encoder(bound.tower.program, bound.weights, options) as encoder:
        yield Vision(bound.tower, encoder)


def _beside(encoder: Encoder, options: LaneOptions) -> LaneOptions:
    """What is left to the text model: the tower's weights count as the model's."""
    if options.weight_budget is None:
        return options
    return evolve(options, weight_budget=max(0, options.weight_budget - encoder.weight_bytes))


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
