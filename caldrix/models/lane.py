"""What a lane is to the layers above it: something that compiles a Program and runs its steps.

A lane is found by its entry point in the group ``caldrix.lanes``, so that another package can add
one. It knows Programs, tensors and its device; it knows no family and no HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from importlib.metadata import entry_points
from typing import Protocol, Self, runtime_checkable

import numpy as np
import numpy.typing as npt
from attrs import field, frozen, validators

from caldrix.errors import CaldrixError, Refusal
from caldrix.models.draw import Draw
from caldrix.models.encoder_program import EncoderProgram
from caldrix.models.program import Program
from caldrix.weights.progress import SILENT, Progress
from caldrix.weights.tensor import Float32, Tensor

LANE_GROUP = "caldrix.lanes"

TokenIds = npt.NDArray[np.int64]


class LaneUnavailable(Refusal):
    """A lane, or an option of it, that this machine or this installation cannot give."""


class ContextUnavailable(LaneUnavailable):
    """A context that takes more memory than there is, where a shorter one does not."""

    def __init__(self, message: str, fitting: int) -> None:
        super().__init__(message)
        self.fitting = fitting
        """The longest that fits."""


class LaneError(CaldrixError):
    """The lane failed while computing a step; the rows of that step hold nothing usable."""


class LaneLost(LaneError):
    """The lane computes nothing any more: its device or its memory is gone."""


@frozen
class LaneOptions:
    """What a model is compiled for."""

    context: int
    """Positions each row can hold."""
    rows: int = 1
    """Sequences whose state is kept at the same time."""
    snapshots: int = 0
    """Rows beside them whose memory snapshots may take, all snapshots together."""
    threads: int | None = None
    """Threads to compute with; None leaves it to the lane."""
    dtype: str = "auto"
    """How weights are kept: auto, f32, bf16, q8_0, q4_1."""
    kv_dtype: str = "auto"
    """How keys and values are kept: auto (the lane's own choice), f16, f32."""
    weight_budget: int | None = None
    """Bytes of weights that may stay in memory; None is no limit."""
    picks: bool = False
    """Whether sampled tokens are picked on the device; only of a lane that `Lane.picks` them."""
    reserved: int = 0
    """Bytes of this machine's memory that others were promised and have not taken yet."""
    progress: Progress = SILENT
    """Told about kernels being compiled."""

    @property
    def most_rows(self) -> int:
        """Rows whose memory the executor and its snapshots come to."""
        return self.rows + self.snapshots

    def refuse_choices(self, kernels: str) -> None:
        """Raises LaneUnavailable if how weights or caches are kept was chosen.

        For ``kernels`` that keep them in one way only.
        """
        for name in ("dtype", "kv_dtype", "weight_budget"):
            value = getattr(self, name)
            if value not in ("auto", None):
                raise LaneUnavailable(
                    f"{kernels} have no choice of --{name.replace('_', '-')}, and {value} was "
                    "asked for; leave it out"
                )


@frozen(eq=False)
class Features:
    """Rows that stand in for the embeddings of some tokens, as an `Encoder` makes them."""

    places: TokenIds
    """Which tokens: their indices in the slice, or in whatever run of tokens this is of. Each is
    above the one before it."""
    rows: Float32 = field()
    """``[len(places), width]``, the width of the Program's embedding; they are not scaled."""

    @rows.validator
    def _check(self, _attribute: object, rows: Float32) -> None:
        if rows.ndim != 2 or len(rows) != len(self.places):
            raise LaneError(f"features {rows.shape} are not rows for {len(self.places)} tokens")
        if (np.diff(self.places) <= 0).any() or (self.places < 0).any():
            raise LaneError("features are for tokens in their order, each once")

    def within(self, first: int, last: int) -> Self | None:
        """Those of tokens ``first`` to ``last`` - 1, counted from ``first``; None for none."""
        begin, end = np.searchsorted(self.places, (first, last))
        if begin == end:
            return None
        return type(self)(self.places[begin:end] - first, self.rows[begin:end])


@frozen(eq=False)
class Slice:
    """A run of tokens of one row, to be computed in one step.

    The row's state must already hold positions 0 to ``start``; whatever it holds from ``start`` on
    is replaced. A row of a Program with states takes slices at its end or at 0 alone. ``wanted``
    is how many of the slice's last tokens have their logits returned. ``features`` replace the
    embeddings of some tokens, whose ids only have to be ones that the vocabulary has.
    """

    row: int
    start: int
    tokens: TokenIds = field(validator=validators.min_len(1))
    wanted: int = 0
    features: Features | None = field(default=None)
    only: TokenIds | None = field(
        default=None, validator=validators.optional(validators.min_len(1))
    )
    """Token ids whose logits are wanted; all others' may have no meaning then."""
    draw: Draw | None = field(default=None)
    """Has the token picked that follows, by a `PickingExecutor` alone: its logits, which are the
    only ones wanted, are not returned."""

    @draw.validator
    def _check_draw(self, _attribute: object, draw: Draw | None) -> None:
        if draw is not None and self.wanted != 1:
            raise LaneError(f"a token is drawn from the logits of one, not of {self.wanted}")

    @features.validator
    def _check_features(self, _attribute: object, features: Features | None) -> None:
        if features is not None and features.places[-1:].max(initial=0) >= len(self.tokens):
            raise LaneError(f"features are for tokens past the slice's {len(self.tokens)}")


class Snapshot(Protocol):
    """What a row held of its first positions, in memory of its own, for as long as it is used."""

    @property
    def length(self) -> int:
        """How many positions."""
        ...


@frozen
class PrefillSizes:
    """Prompt tokens that a step takes, as suits a device: few enough that it soon ends."""

    alone: int = 128
    """With one row, so that leaving never waits for a long prompt. More are no faster on a CPU."""
    shared: int = 64
    """With several rows: others' tokens, and whoever comes, wait for the step's end."""


class Executor(Protocol):
    """A compiled Program with its rows. Not safe to call from two threads at once."""

    @property
    def prefill(self) -> PrefillSizes:
        """The sizes of steps with prompts."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 to ``vocab_size`` - 1; a slice with another has no meaning."""
        ...

    @property
    def row_bytes(self) -> int:
        """Bytes that one row's state takes when its context is full."""
        ...

    @property
    def reproducible(self) -> bool:
        """Whether a token's logits are the same bits however its row came to hold what it holds.

        Alone or in company, in one slice or many, computed or copied. Only then can rows be reused
        and drafts verified without a change of the answer.
        """
        ...

    @property
    def rewinds(self) -> bool:
        """Whether a row can as a rule be gone on from before its end."""
        ...

    def step(self, slices: Sequence[Slice]) -> Float32:
        """Computes the slices, each of a row of its own.

        Returns the wanted logits, ``[sum of wanted, vocab_size]`` float32, in the order of the
        slices; one with a draw has none there. The array is the caller's until the next step.
        Raises LaneError, and LaneLost where no step can follow.
        """
        ...

    def resumable(self, row: int, length: int) -> int:
        """The most of the row's first ``length`` positions that a slice can go on from.

        It is less than ``length``, often 0, where the row no longer holds what a layer would look
        back at: a window that moved on, a state that was not kept. Raises LaneLost.
        """
        ...

    def copy_row(self, source: int, target: int, length: int) -> None:
        """Makes ``target`` hold the first ``length`` positions of ``source``.

        ``length`` is at most what is `resumable`. Raises LaneError, after which ``target`` holds
        nothing usable, and LaneLost.
        """
        ...

    def snapshot(self, row: int, length: int) -> Snapshot:
        """What ``row`` holds of its first ``length`` positions, at most what is `resumable`.

        Raises LaneError and LaneLost.
        """
        ...

    def snapshot_bytes(self, length: int) -> int:
        """Bytes that a snapshot of so many positions takes, no more than `row_bytes`."""
        ...

    def restore(self, snapshot: Snapshot, row: int) -> None:
        """Makes ``row`` hold what a snapshot, made by this executor of any row, has.

        Raises LaneError, after which ``row`` holds nothing usable, and LaneLost.
        """
        ...


@runtime_checkable
class PickingExecutor(Protocol):
    """What an executor has beside, whose lane can pick sampled tokens on the device."""

    @property
    def picks(self) -> bool:
        """Whether it was compiled to: if not, it takes no slice with a draw."""
        ...

    @property
    def picked(self) -> Sequence[int]:
        """Of the last step: the token after each slice with a draw, in the order of the slices.

        It is negative where the logits hold no finite best, or one that is no number.
        """
        ...


class Encoder(Protocol):
    """A compiled EncoderProgram. Not safe to call from two threads at once."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that its weights stay in."""
        ...

    def encode(self, rows: Float32) -> Float32:
        """The features of one tile's ``[rows, width]``: a fresh float32 array.

        The same rows give the same bits, whatever was encoded before. Raises LaneError, and
        LaneLost where nothing can follow.
        """
        ...


class Lane(Protocol):
    """A backend on a device."""

    name: str

    @property
    def verifies_drafts(self) -> bool:
        """Whether several tokens of a row computed at once give the logits of one at a time."""
        ...

    @property
    def picks(self) -> bool:
        """Whether an executor of several rows can be a `PickingExecutor`."""
        ...

    @property
    def usual_rows(self) -> int:
        """Requests that it computes at the same time where nobody says how many."""
        ...

    def batches(self, formats: Set[str]) -> bool:
        """Whether it computes several requests together with matrices kept in these formats.

        They have the names of `caldrix.weights.blocks.FORMATS`.
        """
        ...

    def compile(
        self, program: Program, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Executor]:
        """An executor for as long as the block lasts; leaving it frees memory and threads.

        Raises LaneUnavailable where the device is missing or too small.
        """
        ...

    def compile_encoder(
        self, program: EncoderProgram, weights: Mapping[str, Tensor], options: LaneOptions
    ) -> AbstractContextManager[Encoder]:
        """An encoder for as long as the block lasts; leaving it frees memory and threads.

        Of the options those about threads, memory and how weights are kept apply. Raises
        LaneUnavailable where the lane has no encoders or the device is missing or too small.
        """
        ...

    def describe(self) -> Mapping[str, object]:
        """Facts about the device and the kernels that would run, for ``caldrix doctor``."""
        ...


@runtime_checkable
class OnDevice(Protocol):
    """A lane that a machine may lack the device for."""

    def device(self) -> object:
        """What models run on. Raises LaneUnavailable where it is missing."""
        ...


@runtime_checkable
class ManyDevices(Protocol):
    """A lane that has several devices to choose from."""

    def at(self, number: int) -> Lane:
        """The lane on the device of that number, counted from 0."""
        ...


def available_lanes() -> tuple[str, ...]:
    """The names of the lanes installed, sorted."""
    return tuple(sorted(point.name for point in entry_points(group=LANE_GROUP)))


def find_lane(name: str) -> Lane:
    """The lane of that name, or ``auto`` for the best one.

    A number after a colon, as in ``hip:1``, is one of the lane's devices. Raises LaneUnavailable.
    """
    wanted, colon, number = ("cpu" if name == "auto" else name).partition(":")
    for point in entry_points(group=LANE_GROUP):
        if point.name == wanted:
            factory: Callable[[], Lane] = point.load()
            return _on_device(factory(), number) if colon else factory()
    known = ", ".join(available_lanes()) or "none"
    raise LaneUnavailable(f"there is no lane {wanted!r} here; installed: {known}")


def _on_device(lane: Lane, number: str) -> Lane:
    if not isinstance(lane, ManyDevices):
        raise LaneUnavailable(f"the {lane.name} lane has one device; write --backend {lane.name}")
    if not (number.isascii() and number.isdigit()):
        raise LaneUnavailable(
            f"--backend {lane.name}:{number} names no device; write {lane.name}:0 for the first"
        )
    return lane.at(int(number))
