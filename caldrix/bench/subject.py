"""What can be timed: a model whose sequences take tokens and give logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

import attrs
import numpy as np
from attrs import frozen

from caldrix.models.batching import formats_of
from caldrix.models.lane import Executor, Lane, LaneOptions, LaneUnavailable, Slice, TokenIds
from caldrix.models.registry import BoundProgram, bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.tensor import Float32


class Subject(Protocol):
    """A model with some sequences, which all stand at the same position."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 to ``vocab_size`` - 1."""
        ...

    def start(self, prompts: TokenIds, wanted: int = 1) -> Float32:
        """Begins anew with prompts ``[sequences, tokens]``.

        Returns the logits of each prompt's last ``wanted`` tokens,
        ``[sequences * wanted, vocab_size]``; the array is the caller's until the next call.
        """
        ...

    def decode(self, tokens: TokenIds) -> Float32:
        """Computes one more token of each sequence, ``[sequences]``.

        Returns ``[sequences, vocab_size]``; the array is the caller's until the next call.
        """
        ...


@runtime_checkable
class ReportsBytesRead(Protocol):
    """An Executor that says how many bytes of weights a step with one token reads."""

    @property
    def bytes_read_per_token(self) -> int:
        """Bytes of weights, as the lane keeps them."""
        ...


@runtime_checkable
class ReportsThreads(Protocol):
    """An Executor that says with how many threads it computes at most."""

    @property
    def threads(self) -> int:
        """Threads, the caller's own among them."""
        ...


@runtime_checkable
class ReportsLaunches(Protocol):
    """An Executor whose device is given a token's work in launches, each of which takes time."""

    @property
    def launches_per_token(self) -> int:
        """Launches of a step with one token."""
        ...

    def enqueue_seconds(self) -> float:
        """Seconds that giving the device a token's launches takes, measured once.

        Rows hold nothing usable afterwards.
        """
        ...


@runtime_checkable
class ReportsDeviceMemory(Protocol):
    """An Executor that says where its weights lie."""

    @property
    def device_memory(self) -> str | None:
        """The device in whose own memory they are; None where it is this machine's."""
        ...


class LaneSubject:
    """A model on a lane, fed as the engine feeds it. See `Subject`."""

    def __init__(self, name: str, executor: Executor) -> None:
        self.name = name
        self.vocab_size = executor.vocab_size
        self._executor = executor
        self._position = 0

    @property
    def bytes_read_per_token(self) -> int | None:
        """Bytes of weights that a step with one token reads; None where the lane doesn't say."""
        executor = self._executor
        return executor.bytes_read_per_token if isinstance(executor, ReportsBytesRead) else None

    @property
    def threads(self) -> int | None:
        """Threads the lane computes with; None where it doesn't say."""
        return self._executor.threads if isinstance(self._executor, ReportsThreads) else None

    @property
    def launching(self) -> ReportsLaunches | None:
        """The lane's account of its launches; None for one that has none."""
        return self._executor if isinstance(self._executor, ReportsLaunches) else None

    @property
    def device_memory(self) -> str | None:
        """The device in whose own memory the weights are; None where it is this machine's."""
        executor = self._executor
        return executor.device_memory if isinstance(executor, ReportsDeviceMemory) else None

    def start(self, prompts: TokenIds, wanted: int = 1) -> Float32:
        """Computes the prompts one after the other, each in slices of the engine's size."""
        self._position = prompts.shape[1]
        slices = [
            part
            for row, prompt in enumerate(prompts)
            for part in _prefill_slices(row, prompt, wanted, self._executor.prefill.alone)
        ]
        if len(slices) == 1:
            return self._executor.step(slices)
        # A step's logits are gone with the next step.
        return np.concatenate([self._executor.step([part]).copy() for part in slices])

    def decode(self, tokens: TokenIds) -> Float32:
        """One step with a token of each row."""
        position = self._position
        self._position += 1
        return self._executor.step(
            [Slice(row, position, tokens[row : row + 1], 1) for row in range(len(tokens))]
        )


def _prefill_slices(row: int, prompt: TokenIds, wanted: int, most: int) -> Iterator[Slice]:
    first_wanted = len(prompt) - wanted
    for start in range(0, len(prompt), most):
        tokens = prompt[start : start + most]
        yield Slice(
            row, start, tokens, min(len(tokens), max(0, start + len(tokens) - first_wanted))
        )


@frozen(eq=False)
class Opened:
    """A model that runs, with as many rows as its lane gave."""

    subject: LaneSubject
    rows: int
    refusal: str | None
    """Why there is one row only, where more were asked for."""


@contextmanager
def open_subject(path: Path, lane: Lane, options: LaneOptions) -> Iterator[Opened]:
    """A checkpoint on a lane while the block lasts; it needs no tokenizer.

    A lane that refuses ``options.rows`` is asked for one row. Raises a Refusal that names what is
    wrong with the files or the options.
    """
    with open_checkpoint(path) as checkpoint, ExitStack() as stack:
        bound = bind(checkpoint)

        def compiled(options: LaneOptions) -> LaneSubject:
            executor = lane.compile(bound.program, bound.weights, options)
            return LaneSubject(f"caldrix {lane.name}", stack.enter_context(executor))

        try:
            _require_batches(lane, bound, options)
            opened = Opened(compiled(options), options.rows, None)
        except LaneUnavailable as refusal:
            if options.rows == 1:
                raise
            opened = Opened(compiled(attrs.evolve(options, rows=1)), 1, str(refusal))
        yield opened


def _require_batches(lane: Lane, bound: BoundProgram, options: LaneOptions) -> None:
    formats = formats_of(bound) if options.dtype == "auto" else {options.dtype.upper()}
    if options.rows > 1 and not lane.batches(formats):
        raise LaneUnavailable(
            f"the {lane.name} lane computes one sequence at a time with weights in "
            f"{', '.join(sorted(formats))}"
        )


def max_context(path: Path) -> int:
    """Positions the checkpoint's model was trained for. Raises a Refusal."""
    with open_checkpoint(path) as checkpoint:
        return bind(checkpoint).program.max_context


def random_tokens(vocab_size: int, shape: Sequence[int]) -> TokenIds:
    """Token ids that are the same in each run; a dense model's speed doesn't depend on them."""
    return np.random.Generator(np.random.PCG64(0)).integers(0, vocab_size, shape)
