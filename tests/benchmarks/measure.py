"""What the benchmarks measure: tokens a second in prefill and decode, of one sequence."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import numpy as np
from attrs import frozen

from caldrix.models.lane import Executor, LaneOptions, Slice, find_lane
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint

PREFILL = 512
DEPTH = 32
DECODE = 64
CONTEXT = 2048
TOKENS: Sequence[int] = (
    np.random.Generator(np.random.PCG64(0)).integers(100, 40_000, PREFILL + DECODE).tolist()
)


@frozen
class Speed:
    """Tokens a second."""

    pp: float
    """Prefill of `PREFILL` tokens."""
    tg: float
    """Decode of `DECODE` tokens after `DEPTH`."""


class Subject(Protocol):
    """A model that can be timed."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def prefill(self, tokens: Sequence[int]) -> None:
        """Computes the tokens from position 0, with the last one's logits."""
        ...

    def decode(self, token: int, position: int) -> None:
        """Computes one more token's logits."""
        ...


def measure(subject: Subject) -> Speed:
    """One round."""
    began = time.perf_counter()
    subject.prefill(TOKENS[:PREFILL])
    prefilled = time.perf_counter()
    subject.prefill(TOKENS[:DEPTH])
    depth_reached = time.perf_counter()
    for index in range(DECODE):
        subject.decode(TOKENS[DEPTH + index], DEPTH + index)
    ended = time.perf_counter()
    return Speed(PREFILL / (prefilled - began), DECODE / (ended - depth_reached))


@frozen(eq=False)
class Caldrix:
    """A lane of this project."""

    name: str
    executor: Executor

    def prefill(self, tokens: Sequence[int]) -> None:
        self.executor.step([Slice(0, 0, np.array(tokens), 1)])

    def decode(self, token: int, position: int) -> None:
        self.executor.step([Slice(0, position, np.array([token]), 1)])


@contextmanager
def caldrix(path: Path, backend: str, threads: int | None) -> Iterator[Caldrix]:
    """A checkpoint on a lane."""
    with open_checkpoint(path) as checkpoint:
        bound = bind(checkpoint)
        options = LaneOptions(context=CONTEXT, threads=threads)
        lane = find_lane(backend)
        with lane.compile(bound.program, bound.weights, options) as executor:
            yield Caldrix(f"caldrix {lane.name}", executor)
