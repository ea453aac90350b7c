"""`--sampler`: whether the lane's device or the CPU picks sampled tokens."""

from __future__ import annotations

from typing import Literal, TypeAlias

from caldrix.errors import Refusal
from caldrix.models.lane import Lane

SamplerFlag: TypeAlias = Literal["device", "host"]


def picks_on_device(asked: SamplerFlag | None, lane: Lane, *, max_batch: int) -> bool:
    """Whether the device picks: as asked, else wherever it can. Raises Refusal where it can't."""
    if asked is None:
        return max_batch > 1 and lane.picks
    if asked == "device" and not lane.picks:
        raise Refusal(
            f"--sampler device: the {lane.name} lane picks tokens on the CPU; choose another "
            "--backend, or leave out --sampler"
        )
    if asked == "device" and max_batch == 1:
        raise Refusal(
            "--sampler device: with one request at a time tokens are picked on the CPU; "
            "choose a --max-batch of 2 or more, or leave out --sampler"
        )
    return asked == "device"
