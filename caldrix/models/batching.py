"""How many requests are computed at the same time: as asked for, or as is usual on the lane.

A lane may have kernels that compute several requests together for some formats of weights and not
for others, so a model's files have a say in it.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from attrs import frozen

from caldrix.errors import Refusal
from caldrix.models.lane import Lane
from caldrix.models.program import Linear, Logits
from caldrix.models.registry import BoundProgram, bind
from caldrix.weights.blocks import FORMATS
from caldrix.weights.checkpoint import open_checkpoint
from caldrix.weights.progress import Progress


class BatchRefused(Refusal):
    """More requests at the same time than the lane computes with such weights."""


@frozen
class Batching:
    """What was asked for, and where."""

    lane: Lane
    asked: int | None
    """``--max-batch``, if it was given."""
    dtype: str
    """How weights are to be kept, see `caldrix.models.lane.LaneOptions`."""

    def known(self) -> int | None:
        """How many, if that can be told before there are any files; None where they decide.

        Raises BatchRefused.
        """
        if self.dtype != "auto":
            return self._with({self.dtype.upper()})
        # Whatever the files hold, if it is the same with all formats.
        wanted = self._wanted
        return wanted if wanted == 1 or self.lane.batches(FORMATS.keys()) else None

    def settled(self, path: Path, progress: Progress) -> int:
        """How many for the checkpoint at ``path``, of which only the headers are read.

        Fewer than are usual are noted. Raises BatchRefused, and a Refusal that names what is wrong
        with the files.
        """
        settled = self.known()
        formats: Set[str] = {self.dtype.upper()}
        if settled is None:
            formats = matrix_formats(path)
            settled = self._with(formats)
        if settled < self._wanted:
            progress.note(
                f"one request at a time: the {self.lane.name} lane computes no more together with "
                f"weights in {_named(formats)}; --dtype bf16 has it compute {self._wanted}"
            )
        return settled

    @property
    def _wanted(self) -> int:
        return self.lane.usual_rows if self.asked is None else self.asked

    def _with(self, formats: Set[str]) -> int:
        """How many with matrices in these formats. Raises BatchRefused."""
        if self._wanted == 1 or self.lane.batches(formats):
            return self._wanted
        if self.asked is None:
            return 1
        raise BatchRefused(
            f"--max-batch {self.asked}: the {self.lane.name} lane computes one request at a time "
            f"with weights in {_named(formats)}; use --max-batch 1, or another --backend (cpu and "
            "host compute them together), or --dtype bf16"
        )


def matrix_formats(path: Path) -> Set[str]:
    """The formats of the matrices that a checkpoint's model multiplies with."""
    with open_checkpoint(path) as checkpoint:
        return formats_of(bind(checkpoint))


def formats_of(bound: BoundProgram) -> Set[str]:
    """The formats of the matrices that a model multiplies with."""
    return {
        bound.weights[operation.weight].format.name
        for operation in bound.program.operations
        if isinstance(operation, Linear | Logits)
    }


def _named(formats: Set[str]) -> str:
    return ", ".join(sorted(formats))
