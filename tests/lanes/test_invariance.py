"""A token's logits have the same bits whatever company it is computed in.

They are computed alone first, token by token on one thread; then in slices, beside other rows, on
several threads, after a row went back, and after it held something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache

import numpy as np
import pytest
from attrs import evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.lane import Slice
from caldrix_cpu.formats import choose_format
from caldrix_cpu.tape_executor import TapeExecutor
from caldrix_cpu.variants import Variant
from tests.references import tiny
from tests.support.compiled import BEST, EXECUTABLE, Array, compiled, feed, named
from tests.support.random_models import FORMATS, matrix, random_model, tokens

LENGTHS = (150, 40, 21)
"""Of each row's sequence: the first is long enough for two segments of attention."""
SEQUENCES = tuple(tuple(tokens(length, seed)) for seed, length in enumerate(LENGTHS))
OTHER = tokens(max(LENGTHS), seed=9)
CONTEXT = 160
THREADS = (1, 2, 3)


@frozen
class Piece:
    """A part of a row's sequence, or of another one, computed in one step."""

    row: int
    start: int
    stop: int
    wanted: int
    other: bool
    """Whether it holds another sequence's tokens, which the next piece of the row replaces."""

    def slice(self) -> Slice:
        tokens = OTHER if self.other else SEQUENCES[self.row]
        ids = np.array(tokens[self.start : self.stop], np.int64)
        return Slice(self.row, self.start, ids, self.wanted)


@st.composite
def schedules(draw: st.DrawFn) -> list[list[Piece]]:
    """Steps that each take some rows on, or back."""
    reached = [0] * len(LENGTHS)
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        rows = draw(st.lists(st.sampled_from(range(len(LENGTHS))), min_size=1, unique=True))
        step = []
        for row in rows:
            back = draw(st.integers(0, 3)) == 0 or reached[row] == LENGTHS[row]
            start = draw(st.integers(0, max(reached[row] - 1, 0))) if back else reached[row]
            count = draw(st.one_of(st.integers(1, 9), st.integers(1, LENGTHS[row])))
            stop = min(start + count, LENGTHS[row])
            other = draw(st.integers(0, 5)) == 0
            wanted = draw(st.one_of(st.just(stop - start), st.integers(0, stop - start)))
            step.append(Piece(row, start, stop, wanted, other))
            reached[row] = start if other else stop
        steps.append(step)
    return steps


def without_going_back(steps: Sequence[Sequence[Piece]]) -> list[list[Piece]]:
    """The same steps, where a row begins anew instead."""
    held = [0] * len(LENGTHS)
    changed = []
    for step in steps:
        pieces = [
            piece if piece.start == held[piece.row] else evolve(piece, start=0) for piece in step
        ]
        for piece in pieces:
            held[piece.row] = piece.stop
        changed.append(pieces)
    return changed


def follow(
    executor: TapeExecutor, steps: Sequence[Sequence[Piece]], alone: Sequence[Array]
) -> None:
    """Runs a schedule; every logit of a row's own sequence must be as it was alone."""
    for step in steps:
        logits = executor.step([piece.slice() for piece in step])
        assert len(logits) == sum(piece.wanted for piece in step)
        for piece in step:
            own, logits = logits[: piece.wanted], logits[piece.wanted :]
            if not piece.other:
                expected = alone[piece.row][piece.stop - piece.wanted : piece.stop]
                np.testing.assert_array_equal(own, expected)


@frozen
class Setting:
    """A model, and how it is run."""

    family: str
    kind: str
    variant: Variant = BEST
    kv_dtype: str = "f16"

    def executor(self, threads: int) -> AbstractContextManager[TapeExecutor]:
        model = random_model(self.family, self.kind)
        return compiled(
            model.program, model.weights, context=CONTEXT, rows=len(LENGTHS),
            threads=threads, kv_dtype=self.kv_dtype, variant=self.variant,
        )  # fmt: skip

    def possible(self, steps: Sequence[Sequence[Piece]]) -> Sequence[Sequence[Piece]]:
        """The steps as far as the model can follow them: states don't go back."""
        states = random_model(self.family, self.kind).program.states
        return without_going_back(steps) if states else steps


@cache
def alone(setting: Setting) -> tuple[Array, ...]:
    """Each sequence's logits, token by token."""
    with setting.executor(threads=1) as executor:
        return tuple(feed(executor, each, range(1, len(each))) for each in SEQUENCES)


def own(row: int, start: int, stop: int, wanted: int | None = None) -> Piece:
    return Piece(row, start, stop, stop - start if wanted is None else wanted, other=False)


EVERYTHING = (
    # A long slice and a short one, which holds something else.
    [own(0, 0, 130, 3), Piece(1, 0, 9, 9, other=True)],
    # Single tokens of several rows.
    [own(0, 130, 131), own(1, 0, 1), own(2, 0, 1)],
    [own(2, 1, 21), own(0, 131, 132), own(1, 1, 5, 2)],
    # Back, over the boundary of a segment.
    [own(0, 127, 150)],
    [own(1, 3, 40), own(2, 20, 21)],
)


@pytest.mark.parametrize("kind", FORMATS)
def test_matrices_are_kept_as_they_are_meant_to_be(kind: str) -> None:
    chosen = choose_format(matrix((64, 256), kind, seed=0), "auto", dot=True)
    assert chosen.unit == f"matmul-{kind}"


@pytest.mark.parametrize("family", tiny.CONFIGS)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_and_family(kind: str, family: str) -> None:
    setting = Setting(family, kind)
    for threads in THREADS:
        with setting.executor(threads) as executor:
            follow(executor, setting.possible(EVERYTHING), alone(setting))


@pytest.mark.parametrize("variant", EXECUTABLE[1:], ids=named)
@pytest.mark.parametrize("kind", FORMATS)
def test_every_variant(variant: Variant, kind: str) -> None:
    for family, kv_dtype in (("gemma3", "f16"), ("llama", "f32"), ("qwen3_5", "f16")):
        setting = Setting(family, kind, variant, kv_dtype)
        with setting.executor(threads=2) as executor:
            follow(executor, setting.possible(EVERYTHING), alone(setting))


@given(
    setting=st.builds(
        Setting,
        family=st.sampled_from(sorted(tiny.CONFIGS)),
        kind=st.sampled_from(["Q4_1", "Q6_K", "BF12", "F32"]),
        kv_dtype=st.sampled_from(["f16", "f32"]),
    ),
    threads=st.sampled_from(THREADS),
    steps=schedules(),
)
@settings(max_examples=200, deadline=None)
def test_any_company_and_slicing(
    setting: Setting, threads: int, steps: Sequence[Sequence[Piece]]
) -> None:
    with setting.executor(threads) as executor:
        follow(executor, setting.possible(steps), alone(setting))
