"""Rows that are gone back in, copied and gone on from give the very bits of a prompt from scratch.

From scratch is on another executor, from position 0 on. That its bits depend neither on slices nor
on company is the business of `test_invariance`.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from attrs import define, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.lane import LaneError, LaneLost, LaneOptions, Slice
from caldrix.models.program import Add, Attend
from caldrix_cpu.arena import Arena
from caldrix_cpu.compiled import tape_executor
from caldrix_cpu.numpy_attention import CacheArrays
from caldrix_cpu.numpy_executor import numpy_executor
from caldrix_cpu.plan import COMPILED
from caldrix_cpu.tape_executor import TapeExecutor
from tests.support.compiled import BEST, Array, compiled, feed
from tests.support.random_models import random_model, tokens, windowed_model

CONTEXT = 1100
LONG, OTHER = tokens(CONTEXT, seed=5), tokens(CONTEXT, seed=6)
RING, WINDOW = 768, 9
"""Positions that a layer of gemma3 keeps, and how many of them a token sees."""


@frozen
class Setting:
    """A model, all of whose heads share keys and values two by two, and how caches are kept."""

    family: str
    kind: str
    kv_dtype: str

    def executor(self) -> AbstractContextManager[TapeExecutor]:
        model = random_model(self.family, self.kind)
        return compiled(
            model.program, model.weights, context=CONTEXT, rows=3, kv_dtype=self.kv_dtype
        )


@cache
def from_scratch(setting: Setting) -> Array:
    """The logits of `LONG`."""
    with setting.executor() as executor:
        return feed(executor, LONG)


LLAMA = Setting("llama", "Q4_1", "f16")
GEMMA = Setting("gemma3", "BF12", "f32")
SETTINGS = (LLAMA, GEMMA, Setting("llama", "BF12", "f32"), Setting("gemma3", "Q4_1", "f16"))
every_setting = pytest.mark.parametrize(
    "setting", SETTINGS, ids=lambda each: f"{each.family}-{each.kv_dtype}"
)


def piece(row: int, start: int, text: Sequence[int], wanted: int = 0) -> Slice:
    return Slice(row, start, np.array(text, np.int64), wanted)


@every_setting
def test_a_copy_goes_on_as_if_computed_from_scratch(setting: Setting) -> None:
    expected = from_scratch(setting)
    with setting.executor() as executor:
        # What a target held before is gone.
        feed(executor, OTHER, row=1)
        for length in (1, 15, 16, 17, 127, 128, 129, 300, 700):
            # The source goes on to another text, before the copy and beside it.
            executor.step([piece(0, 0, LONG[:length]), piece(2, 0, OTHER[:40])])
            executor.step([piece(0, length, OTHER[:20])])
            assert executor.resumable(0, length) == length
            executor.copy_row(0, 1, length)
            end = length + 12
            first = executor.step(
                [
                    piece(0, 0, OTHER[: length + 20]),
                    piece(1, length, LONG[length:end], wanted=12),
                    piece(2, 40, OTHER[40:41]),
                ]
            ).copy()
            second = executor.step([piece(1, end, LONG[end : end + 1], wanted=1)])
            np.testing.assert_array_equal(first, expected[length:end])
            np.testing.assert_array_equal(second, expected[end : end + 1])


@every_setting
def test_a_snapshot_is_gone_on_from_whatever_became_of_its_row(setting: Setting) -> None:
    expected = from_scratch(setting)
    with setting.executor() as executor:
        for length in (1, 17, 128, 700, 1050):
            executor.step([piece(0, 0, LONG[:length])])
            snapshot = executor.snapshot(0, length)
            assert snapshot.length == length
            assert executor.snapshot_bytes(length) <= executor.row_bytes
            feed(executor, OTHER)
            feed(executor, OTHER, row=2)
            for row in (0, 2):
                executor.restore(snapshot, row)
                # It remembers no more than its row did.
                assert executor.resumable(row, 5000) == length
                logits = executor.step([piece(row, length, LONG[length : length + 9], wanted=9)])
                np.testing.assert_array_equal(logits, expected[length : length + 9])
        assert executor.snapshot_bytes(100) < executor.snapshot_bytes(700)


def test_a_snapshot_keeps_how_far_the_windows_have_moved() -> None:
    first = 1000 - RING + WINDOW
    with GEMMA.executor() as executor:
        executor.step([piece(0, 0, LONG[:1000])])
        snapshot = executor.snapshot(0, 800)
        executor.step([piece(0, 0, OTHER[:20])])
        executor.restore(snapshot, 1)
        assert [executor.resumable(1, length) for length in (first - 1, first)] == [0, first]


def test_snapshots_that_make_no_sense_are_refused() -> None:
    with LLAMA.executor() as executor:
        executor.step([piece(0, 0, LONG[:20])])
        for row, length in ((0, 21), (0, -1), (1, 1)):
            with pytest.raises(
                LaneError, match=f"{length} positions of row {row} cannot be copied"
            ):
                executor.snapshot(row, length)
        snapshot = executor.snapshot(0, 20)
        with pytest.raises(LaneError, match="no row 3"):
            executor.restore(snapshot, 3)
        with pytest.raises(LaneError, match="no row 3"):
            executor.snapshot(3, 1)
    for use in (lambda: executor.snapshot(0, 20), lambda: executor.restore(snapshot, 0)):
        with pytest.raises(LaneLost):
            use()


@pytest.mark.parametrize("setting", [GEMMA, SETTINGS[3]], ids=["f32", "f16"])
def test_a_window_that_moved_on_is_not_resumed(setting: Setting) -> None:
    expected = from_scratch(setting)
    first = 1000 - RING + WINDOW
    with setting.executor() as executor:
        executor.step([piece(0, 0, LONG[:1000])])
        assert [executor.resumable(0, length) for length in (1, first - 1)] == [0, 0]
        assert [executor.resumable(0, length) for length in (first, 999, 5000)] == [
            first, 999, 1000
        ]  # fmt: skip
        with pytest.raises(LaneError, match=f"{first - 1} positions of row 0 .* from 0 of them"):
            executor.copy_row(0, 1, first - 1)
        for length in (first, 600, 1000):
            executor.copy_row(0, 1, length)
            # A copy remembers no more than its source.
            assert executor.resumable(1, 5000) == length
            assert executor.resumable(1, first - 1) == 0
            logits = executor.step([piece(1, length, LONG[length : length + 9], wanted=9)])
            np.testing.assert_array_equal(logits, expected[length : length + 9])
        # A row that begins anew forgets that it was ever longer.
        executor.step([piece(0, 0, LONG[:300])])
        assert executor.resumable(0, 200) == 200


def test_a_layer_without_a_window_resumes_everything() -> None:
    with LLAMA.executor() as executor:
        executor.step([piece(0, 0, LONG)])
        assert [executor.resumable(0, length) for length in (0, 1, CONTEXT)] == [0, 1, CONTEXT]


def test_a_row_holds_what_was_computed_last() -> None:
    with GEMMA.executor() as executor:
        assert executor.resumable(0, 7) == 0
        executor.step([piece(0, 0, LONG[:100])])
        executor.step([piece(0, 50, OTHER[:1])])
        assert executor.resumable(0, 100) == 51
        with pytest.raises(LaneError, match="row 0 holds 51 positions: it cannot go on from 52"):
            executor.step([piece(0, 52, LONG[52:53])])
        executor.copy_row(0, 1, 20)
        executor.copy_row(1, 2, 0)
        assert [executor.resumable(row, 100) for row in range(3)] == [51, 20, 0]


def test_a_failed_step_leaves_nothing_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    with GEMMA.executor() as executor:
        executor.step([piece(0, 0, LONG[:20]), piece(1, 0, LONG[:30])])
        with monkeypatch.context() as broken:
            broken.setattr(executor, "_compute", lambda run, done: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                executor.step([piece(0, 20, LONG[20:21])])
        assert [executor.resumable(row, 100) for row in (0, 1)] == [0, 30]


@pytest.mark.parametrize(
    ("source", "target", "length", "message"),
    [
        (0, 0, 21, "21 positions of row 0 cannot be copied"),
        (0, 1, 21, "21 positions of row 0 cannot be copied"),
        (0, 1, -1, "-1 positions of row 0 cannot be copied"),
        (1, 0, 1, "1 positions of row 1 cannot be copied"),
        (0, 3, 5, "no row 3: rows are 0 to 2"),
        (-1, 0, 5, "no row -1"),
    ],
)
def test_copies_that_make_no_sense_are_refused(
    source: int, target: int, length: int, message: str
) -> None:
    with LLAMA.executor() as executor:
        executor.step([piece(0, 0, LONG[:20])])
        with pytest.raises(LaneError, match=message):
            executor.copy_row(source, target, length)
        with pytest.raises(LaneError, match="no row 3"):
            executor.resumable(3, 1)
        executor.copy_row(0, 0, 20)
        logits = executor.step([piece(0, 20, LONG[20:21], wanted=1)])
        np.testing.assert_array_equal(logits, from_scratch(LLAMA)[20:21])
    with pytest.raises(LaneLost):
        executor.copy_row(0, 1, 20)
    with pytest.raises(LaneLost):
        executor.resumable(0, 20)


@every_setting
def test_a_draft_is_verified_with_the_bits_of_single_steps(setting: Setting) -> None:
    """Of 1 to 9 tokens, over the border of a segment, after drafts that were rejected."""
    begin, end = 120, 135
    with setting.executor() as executor:
        executor.step([piece(0, 0, LONG[:begin])])
        single = [
            executor.step([piece(0, at, LONG[at : at + 1], wanted=1)])[0].copy()
            for at in range(begin, end)
        ]
        np.testing.assert_array_equal(single, from_scratch(setting)[begin:end])
        executor.copy_row(0, 1, begin)
        for count in range(1, 10):
            for at in range(begin, end - count, 3):
                rejected = [LONG[at], *OTHER[: count - 1]]
                for text in (rejected, LONG[at : at + count]):
                    logits = executor.step(
                        [piece(0, at, text, wanted=count), piece(1, at, text, wanted=count)]
                    )
                np.testing.assert_array_equal(logits[:count], single[at - begin :][:count])
                np.testing.assert_array_equal(logits[count:], single[at - begin :][:count])
                for row in (0, 1):
                    assert executor.resumable(row, end) == at + count
                executor.step([piece(row, begin, LONG[begin:end]) for row in (0, 1)])


@define
class History:
    """Rows that are computed, gone back in and copied, as drawn; what they hold, kept beside."""

    executor: TapeExecutor
    reference: TapeExecutor
    held: list[list[int]]
    most: list[int]
    """The longest that a row, or what it is a copy of, was since it began."""

    def compute(self, row: int, back: int, text: list[int]) -> None:
        """A slice that begins ``back`` positions before the row's end, or at 0 if it must."""
        held = self.held[row]
        start = self.resumed(row, min(max(0, len(held) - back), CONTEXT - 1))
        text = text[: CONTEXT - start]
        wanted = min(len(text), 9)
        logits = self.executor.step([piece(row, start, text, wanted)]).copy()
        self.held[row] = held[:start] + text
        self.most[row] = max(self.most[row] if start else 0, start + len(text))
        scratch = self.reference.step([piece(0, 0, self.held[row], wanted)])
        np.testing.assert_array_equal(logits, scratch)

    def copy(self, source: int, target: int, length: int) -> None:
        length = self.resumed(source, length)
        self.executor.copy_row(source, target, length)
        if source != target:
            self.held[target] = self.held[source][:length]
            self.most[target] = self.most[source]

    def resumed(self, row: int, length: int) -> int:
        """What can be gone on from: all, unless the window's layer has gone round its ring."""
        found = self.executor.resumable(row, length)
        most = min(length, len(self.held[row]))
        lost = self.most[row] - RING
        assert found == (most if lost <= max(0, most - WINDOW) else 0)
        return found


ROWS = st.integers(0, 2)
COMPUTE = st.tuples(
    ROWS,
    st.sampled_from([0, 0, 0, 1, 8, 100, 700, CONTEXT]),
    st.one_of(st.integers(1, 9), st.integers(1, 700)),
    st.integers(0, 9),
)
COPY = st.tuples(ROWS, ROWS, st.integers(0, CONTEXT))


@given(st.lists(st.one_of(COMPUTE, COPY), max_size=12))
@settings(max_examples=60, deadline=None)
def test_any_history_gives_the_bits_of_a_prompt_from_scratch(
    operations: list[tuple[int, ...]],
) -> None:
    model = windowed_model(WINDOW, CONTEXT)
    program, weights = model.program, model.weights
    with (
        compiled(program, weights, context=CONTEXT, rows=3, kv_dtype="f16") as executor,
        compiled(program, weights, context=CONTEXT, rows=1, kv_dtype="f16") as reference,
    ):
        history = History(executor, reference, [[], [], []], [0, 0, 0])
        for operation in operations:
            if len(operation) == 3:
                history.copy(*operation)
            else:
                row, back, count, seed = operation
                history.compute(row, back, tokens(count, seed))


@pytest.mark.parametrize("lacking", [Attend, Add])
def test_with_operations_by_numpy_no_row_is_resumed(lacking: type) -> None:
    model = windowed_model(WINDOW, CONTEXT)
    program, weights = model.program, model.weights
    options = LaneOptions(context=CONTEXT, rows=2, kv_dtype="f32")
    with tape_executor(program, weights, options, BEST, COMPILED - {lacking}) as executor:
        assert executor.by_numpy == (lacking.__name__,)
        assert not executor.reproducible
        executor.step([piece(0, 0, LONG[:20])])
        assert executor.resumable(0, 10) == 0
        with pytest.raises(LaneError, match="10 positions of row 0 cannot be copied"):
            executor.copy_row(0, 1, 10)
        # Two heads of 12, padded to 16 by compiled kernels, and to whole segments.
        kept = 2 * 2 * 12 * 4 * CONTEXT if lacking is Attend else 2 * 2 * 16 * 4 * 1152
        kept_by_window = kept if lacking is Attend else 2 * 2 * 16 * 4 * RING
        assert executor.row_bytes == kept + kept_by_window


def test_numpys_copies_go_on_as_their_source_does() -> None:
    """The same slices give the same bits; others don't, which is what reproducible is about."""
    model = windowed_model(WINDOW, CONTEXT)
    program, weights = model.program, model.weights
    with numpy_executor(program, weights, LaneOptions(context=CONTEXT, rows=2)) as executor:
        assert not executor.reproducible
        executor.step([piece(1, 0, OTHER[:100])])
        executor.step([piece(0, 0, LONG[:20])])
        expected = executor.step([piece(0, 20, LONG[20:30], wanted=10)])
        assert [executor.resumable(0, length) for length in (10, 20, 99)] == [10, 20, 30]
        executor.copy_row(0, 1, 20)
        executor.step([piece(0, 0, OTHER[:40])])
        assert executor.resumable(1, 99) == 20
        logits = executor.step([piece(1, 20, LONG[20:30], wanted=10)])
        np.testing.assert_array_equal(logits, expected)
        with pytest.raises(LaneError, match="row 1 holds 30 positions: it cannot go on from 31"):
            executor.step([piece(1, 31, LONG[31:32])])


def test_what_numpy_keeps_of_a_row_is_what_it_says() -> None:
    model = windowed_model(WINDOW, CONTEXT)
    program, weights = model.program, model.weights
    with numpy_executor(program, weights, LaneOptions(context=CONTEXT)) as executor:
        arrays = [CacheArrays.allocate(each, 1, CONTEXT) for each in program.caches]
        allocated = sum(each.keys.nbytes + each.values.nbytes for each in arrays)
        assert executor.row_bytes == allocated


def memory_in_use() -> int:
    """Bytes of this process that are in memory."""
    return mmap.PAGESIZE * int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_no_request_makes_the_caches_grow(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arenas: list[Arena] = []
    enter = Arena.__enter__

    def entered(self: Arena) -> Arena:
        arenas.append(self)
        return enter(self)

    monkeypatch.setattr(Arena, "__enter__", entered)
    model, rows = random_model(family, "F32"), 6
    with compiled(
        model.program, model.weights, context=CONTEXT, rows=rows, kv_dtype="f16"
    ) as executor:
        taken = [arena.used for arena in arenas]
        # Weights, caches and what steps share.
        assert len(taken) == 3
        assert taken[1] == rows * executor.row_bytes
        executor.step([piece(0, 0, LONG, wanted=1)])
        before = memory_in_use()
        for _ in range(2):
            executor.step([piece(row, 0, LONG[:-1]) for row in range(rows)])
            executor.step([piece(row, CONTEXT - 1, LONG[-1:], wanted=1) for row in range(rows)])
            for row in range(1, rows):
                executor.copy_row(0, row, CONTEXT)
            executor.step([piece(3, 0, OTHER[:50], wanted=9), piece(0, 0, OTHER[:600])])
        grown = memory_in_use() - before
        assert [arena.used for arena in arenas] == taken
        assert grown <= rows * executor.row_bytes
