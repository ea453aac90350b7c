"""Whole models on the OpenCL host lane: right logits, the same bits in any company, rows, refusals.

The tolerances are those of the compiled kernels in `tests/models/test_families.py`: sums in another
order, and keys and values in float16.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.models.draw import Draw
from caldrix.models.lane import LaneError, LaneLost, LaneOptions, Slice
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix_cpu.numpy_executor import numpy_executor
from tests.references import tiny
from tests.references.arrays import load_arrays
from tests.support.as_gguf import write_gguf
from tests.support.compiled import Array, feed
from tests.support.opencl import SHAPES, on_host, require_device
from tests.support.random_models import random_model, tokens

REFERENCES = Path(__file__).parents[1] / "references" / "data" / "families.npz"
PROMPT = np.array(tiny.PROMPT, np.int64)
TOLERANCE = {"f32": 1e-5, "f16": 5e-3}
ROUNDED = 5e-4
"""With quants a CPU rounds what is multiplied to 16 bits, each sixteen columns by themselves."""

LENGTHS = (300, 40, 21)
"""Of each row's sequence: the first is long enough for two segments of attention."""
SEQUENCES = tuple(tuple(tokens(length, seed)) for seed, length in enumerate(LENGTHS))
CONTEXT = 320

shapes = pytest.mark.parametrize("shape", SHAPES)


def assert_close(logits: Array, expected: Array, tolerance: float) -> None:
    assert np.abs(logits - expected).max() / np.abs(expected).max() < tolerance


@shapes
@pytest.mark.parametrize("kv_dtype", TOLERANCE)
@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_equal_the_reference(name: str, kv_dtype: str, shape: str, tmp_path: Path) -> None:
    require_device()
    assert_as_reference(tiny.write_checkpoint(name, tmp_path), name, kv_dtype, shape)


@shapes
def test_logits_of_a_gguf_file_equal_the_reference(shape: str, tmp_path: Path) -> None:
    """Whose rotary embeddings turn neighbouring columns."""
    require_device()
    assert_as_reference(write_gguf("llama", tmp_path / "llama.gguf"), "llama", "f32", shape)


def assert_as_reference(path: Path, name: str, kv_dtype: str, shape: str) -> None:
    with open_checkpoint(path) as opened:
        bound = bind(opened)
        with on_host(bound.program, bound.weights, shape=shape, kv_dtype=kv_dtype) as executor:
            logits = feed(executor, PROMPT.tolist(), row=1)
    checked = list(tiny.CHECKED_POSITIONS)
    assert_close(logits[checked], load_arrays(REFERENCES)[name], TOLERANCE[kv_dtype])


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "qwen3_5"])
def test_weights_in_fewer_bits_are_those_that_numpy_decodes(family: str, kind: str) -> None:
    model = random_model(family, kind)
    options = LaneOptions(context=64, rows=1)
    with numpy_executor(model.program, model.weights, options) as reference:
        expected = feed(reference, PROMPT.tolist())
    with on_host(model.program, model.weights) as executor:
        logits = feed(executor, PROMPT.tolist())
    assert_close(logits, expected, ROUNDED if kind.startswith("Q") else 2e-5)


@cache
def alone(family: str, kind: str, shape: str) -> tuple[Array, ...]:
    """Each sequence's logits, token by token."""
    model = random_model(family, kind)
    with on_host(
        model.program, model.weights, shape=shape, context=CONTEXT, kv_dtype="f16"
    ) as executor:
        return tuple(feed(executor, each, range(1, len(each))) for each in SEQUENCES)


COUNTS = (1, 0, 2, 5, 8, 9, 17, 130, 300)
"""Tokens that a slice may have."""


def cut(counts: Sequence[tuple[int, int, int]]) -> Iterator[list[tuple[int, int, int]]]:
    """Steps that take each row on by so many tokens: rows, and where their slices begin and end."""
    reached = [0] * len(LENGTHS)
    for each in counts:
        step = []
        for row, (length, count) in enumerate(zip(LENGTHS, each, strict=True)):
            stop = min(reached[row] + count, length)
            if stop > reached[row]:
                step.append((row, reached[row], stop))
                reached[row] = stop
        if step:
            yield step


@given(
    family=st.sampled_from(["gemma3", "llama", "qwen2", "qwen3", "qwen3_5"]),
    kind=st.sampled_from(["F32", "BF16", "Q4_1", "Q6_K"]),
    shape=st.sampled_from(SHAPES),
    counts=st.lists(st.tuples(*[st.sampled_from(COUNTS)] * 3), min_size=1, max_size=5),
)
@settings(max_examples=25, deadline=None)
def test_the_same_bits_alone_and_in_any_company(
    family: str, kind: str, shape: str, counts: Sequence[tuple[int, int, int]]
) -> None:
    expected = alone(family, kind, shape)
    model = random_model(family, kind)
    with on_host(
        model.program, model.weights, shape=shape, context=CONTEXT, rows=3, kv_dtype="f16"
    ) as executor:
        for step in cut(counts):
            logits = executor.step(
                [
                    Slice(row, start, np.array(SEQUENCES[row][start:stop]), stop - start)
                    for row, start, stop in step
                ]
            )
            for row, start, stop in step:
                own, logits = logits[: stop - start], logits[stop - start :]
                np.testing.assert_array_equal(own, expected[row][start:stop])


@shapes
@pytest.mark.parametrize("family", ["qwen3_5", "gemma3"])
def test_a_step_again_gives_the_same_bits(family: str, shape: str) -> None:
    """Work-groups run side by side: what they shared by mistake would differ from time to time."""
    model = random_model(family, "F32")
    with on_host(model.program, model.weights, shape=shape) as executor:
        expected = executor.step([piece(0, 0, tiny.PROMPT, wanted=40)]).copy()
        for _ in range(40):
            logits = executor.step([piece(0, 0, tiny.PROMPT, wanted=40)])
            np.testing.assert_array_equal(logits, expected)
        for _ in range(5):
            one_by_one = feed(executor, tiny.PROMPT, range(1, 40))
            np.testing.assert_array_equal(one_by_one, expected)


@pytest.mark.parametrize("kind", ["BF16", "Q8_0"])
def test_groups_that_leave_a_chain_at_once_change_no_bit(kind: str) -> None:
    """As where a core is taken away in the middle of a part: whoever is left does the rest."""
    device = require_device()
    from caldrix_opencl.compiled import opencl_executor
    from caldrix_opencl.context import CPU

    model, text = random_model("llama", kind), SEQUENCES[1]
    options = LaneOptions(context=CONTEXT, rows=3, kv_dtype="f16")
    hasty = evolve(CPU, patience=0)
    with opencl_executor(model.program, model.weights, options, device, hasty) as executor:
        for _ in range(5):
            logits = feed(executor, text, range(1, len(text)))
            np.testing.assert_array_equal(logits, alone("llama", kind, "cpu")[1])


def piece(row: int, start: int, text: Sequence[int], wanted: int = 0) -> Slice:
    return Slice(row, start, np.array(text, np.int64), wanted)


@shapes
def test_rows_are_gone_back_in_copied_kept_and_gone_on_from(shape: str) -> None:
    text, other = SEQUENCES[0], tokens(60, seed=9)
    expected = alone("gemma3", "BF16", shape)[0]
    model = random_model("gemma3", "BF16")
    with on_host(
        model.program, model.weights, shape=shape, context=CONTEXT, rows=3, kv_dtype="f16"
    ) as executor:
        executor.step([piece(2, 0, other)])
        for length in (1, 15, 16, 17, 255, 256, 257):
            executor.step([piece(0, 0, text[:length])])
            executor.step([piece(0, length, other[:20])])
            assert executor.resumable(0, length) == length
            executor.copy_row(0, 1, length)
            kept = executor.snapshot(0, length)
            assert executor.snapshot_bytes(length) <= executor.row_bytes
            executor.step([piece(0, 0, other)])
            executor.restore(kept, 2)
            for row in (1, 2):
                assert executor.resumable(row, 999) == length
                logits = executor.step([piece(row, length, text[length : length + 9], 9)])
                np.testing.assert_array_equal(logits, expected[length : length + 9])
        assert [executor.resumable(0, length) for length in (0, 5, 999)] == [0, 5, 60]


def test_what_makes_no_sense_is_refused() -> None:
    model = random_model("llama", "Q8_0")
    with on_host(model.program, model.weights) as executor:
        executor.step([piece(0, 0, [1, 2, 3])])
        for slices, message in (
            ([], "slices of rows of their own"),
            ([piece(0, 3, [1]), piece(0, 4, [1])], "slices of rows of their own"),
            ([piece(0, 4, [1])], "row 0 holds 3 positions: it cannot go on from 4"),
            ([piece(2, 0, [1])], "there is no row 2: rows are 0 to 1"),
            ([piece(0, 0, [96])], "tokens are 0 to 95, not 96 to 96"),
            ([piece(0, 0, [1], wanted=2)], "no 2 whose logits"),
            ([piece(0, 0, [1] * 65)], "past the context of 64"),
        ):
            with pytest.raises(LaneError, match=message):
                executor.step(slices)
        with pytest.raises(LaneError, match="4 positions of row 0 cannot be copied"):
            executor.copy_row(0, 1, 4)
        with pytest.raises(LaneError, match="4 positions of row 0 cannot be copied"):
            executor.snapshot(0, 4)
        kept = executor.snapshot(0, 3)
    uses = (
        lambda: executor.step([piece(0, 0, [1])]),
        lambda: executor.copy_row(0, 1, 1),
        lambda: executor.restore(kept, 0),
        lambda: executor.resumable(0, 1),
    )
    for use in uses:
        with pytest.raises(LaneLost):
            use()


def test_leaving_frees_what_it_held() -> None:
    """Measured in addresses: memory that nothing has been written to counts there as well."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system does not tell how much memory a process has")

    def taken() -> int:
        return int(statm.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    model = random_model("llama", "Q8_0")
    context = 150_000
    with on_host(model.program, model.weights, context=context, kv_dtype="f16") as executor:
        executor.step([piece(0, 0, [1, 2, 3], wanted=1)])
        caches = 2 * executor.row_bytes
        inside = taken()
    # Two layers of two heads of 64 columns, keys and values, in two bytes each.
    assert caches == 2 * 2 * (2 * 2 * 64 * 2) * context
    assert inside - taken() > caches


def test_no_copy_to_the_device_is_dropped_before_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its event would wait for it, for as long as all launches before it take, with all threads."""
    require_device()
    import pyopencl as cl

    copy, dropped = cl.enqueue_copy, []

    class Copy:
        def __init__(self, event: cl.Event) -> None:
            self._event = event

        def __del__(self) -> None:
            dropped.append(self._event.command_execution_status)

    def watched(*arguments: Any, is_blocking: bool = True, **named: Any) -> Any:
        event = copy(*arguments, is_blocking=is_blocking, **named)
        return event if is_blocking else Copy(event)

    model, draw = random_model("llama", "Q8_0"), Draw(0.5, 1.0)
    with on_host(model.program, model.weights, context=CONTEXT, picks=True) as executor:
        monkeypatch.setattr(cl, "enqueue_copy", watched)
        for _ in range(20):
            executor.step([piece(0, 0, SEQUENCES[0], 40), Slice(1, 0, PROMPT, 1, draw=draw)])
    # Places, embeddings, which logits are wanted, in two parts, and settings.
    assert dropped == [cl.command_execution_status.COMPLETE] * (20 * 5)


@pytest.mark.parametrize("family", ["llama", "qwen3_5"])
def test_timing_launches_spoils_no_row_that_begins_anew(family: str) -> None:
    model = random_model(family, "F32")
    text = SEQUENCES[2]
    with on_host(model.program, model.weights) as executor:
        expected = executor.step([piece(0, 0, text, wanted=21)]).copy()
        executor.step([piece(1, 0, text)])
        assert executor.enqueue_seconds() > 0
        assert [executor.resumable(row, 99) for row in (0, 1)] == [0, 21]
        each = executor.launch_seconds(2, 40, times=3)
        assert len(each) > executor.launches_per_token  # one token has several in one
        assert min(each) > 0
        assert [executor.resumable(row, 99) for row in (0, 1)] == [0, 0]
        for row in (0, 1):
            logits = executor.step([piece(row, 0, text, wanted=21)])
            np.testing.assert_array_equal(logits, expected)
    with pytest.raises(LaneLost):
        executor.enqueue_seconds()


def test_a_row_with_states_goes_on_from_its_end_alone() -> None:
    text = SEQUENCES[1]
    expected = alone("qwen3_5", "BF16", "cpu")[1]
    model = random_model("qwen3_5", "BF16")
    with on_host(model.program, model.weights, context=CONTEXT, rows=3, kv_dtype="f16") as executor:
        assert not executor.rewinds
        executor.step([piece(0, 0, text[:20])])
        assert [executor.resumable(0, length) for length in (19, 20, 99)] == [0, 20, 20]
        with pytest.raises(LaneError, match="20 positions in states that cannot go back"):
            executor.step([piece(0, 5, text[5:6])])
        kept = executor.snapshot(0, 20)
        executor.copy_row(0, 1, 20)
        executor.step([piece(0, 20, [3] * 9), piece(2, 0, [7] * 30)])
        executor.restore(kept, 2)
        for row in (1, 2):
            logits = executor.step([piece(row, 20, text[20:29], wanted=9)])
            np.testing.assert_array_equal(logits, expected[20:29])
        # A row that begins anew begins from nothing.
        logits = executor.step([piece(1, 0, text[:9], wanted=9)])
        np.testing.assert_array_equal(logits, expected[:9])
