"""A lane that loses its device when a test says so, after which no step can follow."""

from __future__ import annotations

from collections.abc import Sequence

from caldrix.models.lane import LaneLost, Slice
from caldrix.weights.tensor import Float32
from tests.support import miniature
from tests.support.scripted import ScriptedExecutor, endless


class LosesItsDevice(ScriptedExecutor):
    """Follows its script until ``lost`` is set."""

    lost = False

    def step(self, slices: Sequence[Slice]) -> Float32:
        logits = super().step(slices)
        if self.lost:
            raise LaneLost("the device is gone")
        return logits


def loses_its_device(text: str = "a", *, at_once: bool = False) -> LosesItsDevice:
    """A model that says a one-token ``text`` until then."""
    (token,) = miniature.ids(text)
    executor = LosesItsDevice(endless(token), miniature.tokenizer().vocab_size)
    executor.lost = at_once
    return executor
