"""Rows with states: where they go on from, and copies that are gone on from.

By compiled kernels a copy gives the very bits of a prompt from scratch in any slices, by numpy in
the same slices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.lane import Executor, LaneError, LaneOptions, Slice
from caldrix.models.program import Convolve, DeltaRule
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.embeddings import Embeddings
from caldrix_cpu.numpy_executor import numpy_executor
from caldrix_cpu.plan import COMPILED
from tests.support.compiled import BEST, Array, feed
from tests.support.random_models import random_model, tokens

CONTEXT = 256
LONG, OTHER = tokens(CONTEXT, seed=5), tokens(CONTEXT, seed=6)
IN_A_STEP = {"numpy": (np, "logaddexp"), "compiled": (Embeddings, "write")}
"""Something that is called after a step has begun."""
by_either = pytest.mark.parametrize("kernels", ["numpy", "compiled"])


@contextmanager
def running(kernels: str) -> Iterator[Executor]:
    model = random_model("qwen3_5", "F32")
    options = LaneOptions(context=CONTEXT, rows=3, threads=1)
    if kernels == "numpy":
        with numpy_executor(model.program, model.weights, options) as by_numpy:
            yield by_numpy
    else:
        with tape_executor(model.program, model.weights, options, BEST) as compiled:
            yield compiled


def read(executor: Executor, row: int, start: int, text: Sequence[int], wanted: int = 0) -> Array:
    ids = np.array(text, np.int64)
    return executor.step([Slice(row, start, ids, wanted)]).copy()


@by_either
def test_many_questions_on_one_state(kernels: str) -> None:
    """The state is read once, each question goes on from a copy of it, then it is dropped."""
    questions = [LONG[100:120], OTHER[100:101], LONG[100:170]]
    with running(kernels) as executor:
        alone = []
        for question in questions:
            read(executor, 0, 0, LONG[:100])
            alone.append(read(executor, 0, 100, question, wanted=1))
        read(executor, 1, 0, LONG[:100])
        # What a target held before is gone.
        read(executor, 2, 0, OTHER[:180])
        for question, expected in zip(questions, alone, strict=True):
            assert executor.resumable(1, 1000) == 100
            executor.copy_row(1, 2, 100)
            np.testing.assert_array_equal(read(executor, 2, 100, question, wanted=1), expected)
        # Another text in its place, as if nothing had been there.
        fresh = read(executor, 0, 0, OTHER[:50], wanted=50)
        np.testing.assert_array_equal(read(executor, 1, 0, OTHER[:50], wanted=50), fresh)


@by_either
def test_a_snapshot_has_the_states(kernels: str) -> None:
    with running(kernels) as executor:
        read(executor, 0, 0, LONG[:40])
        snapshot = executor.snapshot(0, 40)
        assert 0 < executor.snapshot_bytes(40) <= executor.row_bytes
        expected = read(executor, 0, 40, LONG[40:50], wanted=10)
        with pytest.raises(LaneError, match=r"40 positions of row 0 cannot be copied"):
            executor.snapshot(0, 40)
        read(executor, 1, 0, OTHER[:180])
        for row in (1, 0, 1):
            executor.restore(snapshot, row)
            np.testing.assert_array_equal(read(executor, row, 40, LONG[40:50], wanted=10), expected)


@by_either
def test_a_row_goes_on_from_its_end_alone(kernels: str) -> None:
    with running(kernels) as executor:
        read(executor, 0, 0, LONG[:40])
        expected = read(executor, 0, 40, LONG[40:50], wanted=10)
        assert [executor.resumable(0, length) for length in (1, 49, 50, 99)] == [0, 0, 50, 50]
        refusal = "row 0 holds 50 positions in states that cannot go back: .* but not from 40"
        with pytest.raises(LaneError, match=refusal):
            read(executor, 0, 40, LONG[40:50])
        with pytest.raises(LaneError, match=r"40 positions of row 0 cannot be copied: .* from 0"):
            executor.copy_row(0, 1, 40)
        # A refusal costs nothing of what the row holds.
        executor.copy_row(0, 1, 50)
        for row in (0, 1):
            read(executor, row, 50, LONG[50:60])
            read(executor, row, 0, LONG[:40])
            again = read(executor, row, 40, LONG[40:50], wanted=10)
            np.testing.assert_array_equal(again, expected)


@by_either
def test_a_row_of_a_failed_step_begins_anew(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(kernels) as executor:
        read(executor, 0, 0, LONG[:20])
        expected = read(executor, 1, 0, LONG[:30], wanted=1)
        with monkeypatch.context() as broken:
            broken.setattr(*IN_A_STEP[kernels], lambda *arguments: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                read(executor, 0, 20, LONG[20:30])
        assert executor.resumable(0, 20) == 0
        with pytest.raises(LaneError, match="row 0 holds 0 positions"):
            read(executor, 0, 20, LONG[20:30])
        np.testing.assert_array_equal(read(executor, 0, 0, LONG[:30], wanted=1), expected)


@by_either
def test_states_take_the_memory_that_is_told(kernels: str) -> None:
    """Of three layers: 2 heads of 32 by 128, and 3 tokens of 128 + 256 columns before them."""
    states = 4 * 3 * (2 * 32 * 128 + 3 * (2 * 2 * 32 + 2 * 128))
    # A layer of 2 heads of 64, by compiled kernels in halves.
    keys_and_values = 2 * 2 * 64 * CONTEXT * (4 if kernels == "numpy" else 2)
    with running(kernels) as executor:
        assert executor.row_bytes == states + keys_and_values


@pytest.mark.parametrize("lacking", [Convolve, DeltaRule])
def test_a_state_is_kept_once_by_who_changes_it(lacking: type) -> None:
    model = random_model("qwen3_5", "F32")
    options = LaneOptions(context=CONTEXT, rows=2, threads=1)
    with tape_executor(
        model.program, model.weights, options, BEST, COMPILED - {lacking}
    ) as executor:
        assert executor.by_numpy == (lacking.__name__,)
        assert not executor.reproducible
        by_numpy = read(executor, 0, 0, LONG[:40], wanted=1)
        # What numpy sums up depends on company.
        assert executor.resumable(0, 40) == 0
        row_bytes = executor.row_bytes
    with running("compiled") as executor:
        assert executor.row_bytes == row_bytes
        expected = read(executor, 0, 0, LONG[:40], wanted=1)
    # Float32 in two orders of summation.
    assert np.abs(by_numpy - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.fixture(scope="module")
def from_scratch() -> Array:
    """The logits of `LONG`, computed token by token."""
    with running("compiled") as executor:
        assert executor.reproducible
        return feed(executor, LONG, range(1, CONTEXT))


@given(
    lengths=st.lists(st.integers(1, 90), min_size=2, max_size=6),
    copies=st.lists(st.booleans(), min_size=6, max_size=6),
)
@settings(max_examples=25, deadline=None)
def test_compiled_kernels_give_one_answer_in_any_slices(
    lengths: list[int], copies: list[bool], from_scratch: Array
) -> None:
    with running("compiled") as executor:
        row, at = 0, 0
        for length, copied in zip(lengths, copies, strict=False):
            end = min(at + length, CONTEXT)
            if end == at:
                break
            logits = read(executor, row, at, LONG[at:end], wanted=end - at)
            np.testing.assert_array_equal(logits, from_scratch[at:end])
            at = end
            if copied:
                executor.copy_row(row, 1 - row, at)
                row = 1 - row
                # The source becomes another's, beside it.
                read(executor, 1 - row, 0, OTHER[:33])
