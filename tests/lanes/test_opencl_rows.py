"""Layers with a window keep a ring on the OpenCL lanes: the same bits, and rows gone on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from caldrix.models.lane import Executor, LaneError, Slice
from tests.support.compiled import Array, feed
from tests.support.opencl import SHAPES, on_host, require_device
from tests.support.random_models import random_model, tokens, windowed_model

WINDOW, CONTEXT = 9, 1100
RING = 528
"""Positions that a layer keeps: its window and a run of 512 tokens, in whole tiles."""
LONG, OTHER = tokens(CONTEXT, seed=5), tokens(CONTEXT, seed=6)
CUTS = (1, 17, 500, 513, 1041, 1042, 1057)
"""Past the ring's end, and round it."""

MODEL = windowed_model(WINDOW, CONTEXT)


def piece(row: int, start: int, text: Sequence[int], wanted: int = 0) -> Slice:
    return Slice(row, start, np.array(text, np.int64), wanted)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest) -> str:
    require_device()
    shape: str = request.param
    return shape


@pytest.fixture(scope="module")
def executor(shape: str) -> Iterator[Executor]:
    with on_host(
        MODEL.program, MODEL.weights, shape=shape, context=CONTEXT, rows=3, kv_dtype="f16"
    ) as executor:
        yield executor


@cache
def expected(shape: str) -> Array:
    """The logits of `LONG`, of layers that keep all positions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caldrix_opencl.rows.MOST_TOKENS", CONTEXT)
        with on_host(
            MODEL.program, MODEL.weights, shape=shape, context=CONTEXT, rows=1, kv_dtype="f16"
        ) as executor:
            assert executor.row_bytes == 2 * LAYER_BYTES * 1104
            return feed(executor, LONG)


LAYER_BYTES = 2 * (2 * 16 * 2)
"""Keys and values of two heads of 12 columns, filled up to 16, in two bytes each."""


def test_a_ring_gives_the_bits_of_the_whole_context(executor: Executor, shape: str) -> None:
    assert executor.row_bytes == LAYER_BYTES * (RING + 1104)
    for cuts in (CUTS, range(1024, CONTEXT)):
        np.testing.assert_array_equal(feed(executor, LONG, cuts, row=1), expected(shape))


def test_the_layers_of_gemma3_keep_their_windows() -> None:
    """Of seven layers one sees everything."""
    model = random_model("gemma3", "BF16")
    with on_host(model.program, model.weights, context=CONTEXT, rows=1, kv_dtype="f16") as executor:
        layer = 2 * (2 * 64 * 2)
        assert executor.row_bytes == layer * (6 * RING + 1104)
        whole = feed(executor, LONG[:700])
        np.testing.assert_array_equal(feed(executor, LONG[:700], (100, 530, 531)), whole)


def test_a_window_that_moved_on_is_not_resumed(executor: Executor, shape: str) -> None:
    first = 1000 - RING + WINDOW
    executor.step([piece(0, 0, LONG[:1000])])
    assert [executor.resumable(0, length) for length in (1, first - 1)] == [0, 0]
    assert [executor.resumable(0, length) for length in (first, 999, 5000)] == [first, 999, 1000]
    with pytest.raises(LaneError, match=f"a layer keeps {RING} positions: it cannot go on from 9"):
        executor.step([piece(0, 9, LONG[9:10])])
    with pytest.raises(LaneError, match=f"{first - 1} positions of row 0 .* from 0 of them"):
        executor.copy_row(0, 1, first - 1)
    for length in (first, 700, 1000):
        executor.copy_row(0, 1, length)
        kept = executor.snapshot(0, length)
        assert executor.snapshot_bytes(length) <= executor.row_bytes
        executor.step([piece(2, 0, OTHER[:800])])
        executor.restore(kept, 2)
        for row in (1, 2):
            # Neither remembers more than its source.
            assert executor.resumable(row, 5000) == length
            assert executor.resumable(row, first - 1) == 0
            logits = executor.step([piece(row, length, LONG[length : length + 9], 9)])
            np.testing.assert_array_equal(logits, expected(shape)[length : length + 9])
    # A row that begins anew forgets that it was ever longer.
    executor.step([piece(0, 0, LONG[:300])])
    assert executor.resumable(0, 200) == 200
