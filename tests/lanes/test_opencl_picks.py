"""Tokens picked on the device: the candidates, the draw among them, and their distribution.

Where every candidate weighs the same, which the highest temperatures do, evenly spaced random
numbers give all of them, and nothing else. Numbers in float64 say which they are, and which only
rounding decides about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pytest
import trio
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.engine.candidates import Candidates
from caldrix.engine.engine import Engine, GenerationRequest, running_engine
from caldrix.engine.sampling import Sampler, SamplingSettings
from caldrix.models.draw import Draw
from caldrix.models.lane import LaneError, PickingExecutor, Slice
from caldrix.weights.tensor import Float32
from caldrix_cpu.lane import CpuLane
from caldrix_opencl.lane import HipLane, HostLane
from tests.support.draws import ROUNDING, candidates, pick, probabilities
from tests.support.logits import flat, peaked
from tests.support.opencl import SHAPES, on_host, require_device
from tests.support.random_models import VOCAB, random_model, tokens

if TYPE_CHECKING:
    import pyopencl as cl

    from caldrix_opencl.picks import Picker

Make = Callable[[np.random.Generator, int], np.ndarray]
KINDS: dict[str, Make] = {
    "peaked": peaked,
    "flat": flat,
    "steps": lambda random, size: np.round(random.standard_normal(size) * 4) / 4,
    "equal": lambda random, size: np.full(size, -1.5),
    "zeros of either sign": lambda random, size: random.choice([-0.0, 0.0], size),
    "huge": lambda random, size: random.uniform(-3.4e38, 3.4e38, size),
    "few allowed": lambda random, size: np.where(
        random.random(size) < 0.1, random.standard_normal(size), -math.inf
    ),
}
SIZES = (1, 5, 16, 17, 300, 1025, 5003)
MOST = 32
FLAT = 1e300
shapes = pytest.mark.parametrize("shape", SHAPES)


class Device:
    """Logits and pickers of one shape of kernels."""

    def __init__(self, shape: str, stack: ExitStack) -> None:
        from caldrix_opencl.context import CPU, GPU, opened

        self._context = stack.enter_context(
            opened(require_device(), {"cpu": CPU, "gpu": GPU}[shape])
        )
        self._pickers: dict[int, tuple[cl.Buffer, Picker]] = {}

    def pick(self, logits: Float32, draws: Sequence[Draw]) -> list[int]:
        """Each draw's token, from its row of ``[draws, size]`` logits or from the same for all."""
        import pyopencl as cl

        from caldrix_opencl.picks import Picker

        size = logits.shape[-1]
        stride = -(-size // 16) * 16
        if size not in self._pickers:
            memory = self._context.allocate(4 * stride * (MOST + 1))
            self._pickers[size] = memory, Picker(self._context, memory, size, MOST, size)
        memory, picker = self._pickers[size]
        rows = np.full((len(draws) + 1, stride), 1e38, np.float32)
        rows[1:, :size] = logits
        picked: list[int] = []
        for first in range(0, len(draws), MOST):
            some = draws[first : first + MOST]
            # The first row is nobody's.
            rows[first, :] = math.nan
            cl.enqueue_copy(self._context.queue, memory, rows[first : first + len(some) + 1])
            for draw in some:
                picker.check(draw)
            picked += picker.pick(1, some)
        return picked


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Device]]:
    with ExitStack() as stack:
        yield {shape: Device(shape, stack) for shape in SHAPES}


def make(kind: str, size: int, seed: int = 0) -> Float32:
    logits = KINDS[kind](np.random.default_rng(seed), size).astype(np.float32)
    if not np.isfinite(logits).any():
        logits[size // 2] = 0.5
    return logits


def spread(draw: Draw, count: int) -> list[Draw]:
    """The draw, with evenly spaced random numbers."""
    return [evolve(draw, uniform=(index + 0.5) / count) for index in range(count)]


CUTS = [
    Draw(0.0, FLAT, top_k=1),
    Draw(0.0, FLAT, top_k=5),
    Draw(0.0, FLAT, top_k=17),
    Draw(0.0, FLAT, top_k=10**9, top_p=1e-300),
    Draw(0.0, FLAT, top_p=0.4),
    Draw(0.0, FLAT, top_k=40, top_p=0.9),
    Draw(0.0, FLAT, min_p=1.0),
    Draw(0.0, FLAT, min_p=0.3),
    Draw(0.0, FLAT, min_p=5e-324, top_k=20),
    Draw(0.0, FLAT, top_k=30, top_p=0.8, min_p=0.2),
    Draw(0.0, FLAT, top_k=4, repetition_penalty=1.5, seen=np.array([0, 2, 4])),
    Draw(0.0, FLAT, top_p=0.6, repetition_penalty=1e-300, seen=np.array([3, 1])),
    Draw(0.0, FLAT, top_k=9, repetition_penalty=1e300, seen=np.array([0, 1, 2, 3, 4])),
]


@shapes
@pytest.mark.parametrize("size", [5, 17, 5003])
@pytest.mark.parametrize("kind", KINDS)
def test_the_candidates(kind: str, size: int, shape: str, devices: dict[str, Device]) -> None:
    logits = make(kind, size)
    for cut in CUTS:
        kept = candidates(logits, cut)
        count = int(kept.maybe.sum())
        every = count <= 100
        found = devices[shape].pick(logits, spread(cut, 2 * count if every else MOST))
        assert found == sorted(found)
        assert set(found) <= set(np.flatnonzero(kept.maybe))
        if every:
            assert set(np.flatnonzero(kept.sure)) <= set(found)
        else:
            # Of so many, those that are evenly spaced.
            assert len(set(found)) == MOST


@shapes
def test_ties_at_a_cut_are_kept(shape: str, devices: dict[str, Device]) -> None:
    """Eight tokens share the best logit, and two the next."""
    logits = np.full(2000, -30.0, np.float32)
    best, next_best = np.linspace(0, 1999, 8).astype(int).tolist(), [700, 1500]
    logits[best], logits[next_best] = 2.0, 1.0
    for cut, kept in (
        (Draw(0.0, FLAT, top_k=1), best),
        (Draw(0.0, FLAT, top_k=8), best),
        (Draw(0.0, FLAT, top_k=9), sorted(best + next_best)),
        (Draw(0.0, FLAT, top_p=0.01), best),
        (Draw(0.0, FLAT, top_p=0.99), sorted(best + next_best)),
        (Draw(0.0, FLAT, top_k=3, top_p=0.5), best),
        (Draw(0.0, FLAT, min_p=math.exp(-1.01)), sorted(best + next_best)),
        (Draw(0.0, FLAT, min_p=math.exp(-0.99)), best),
    ):
        assert devices[shape].pick(logits, spread(cut, len(kept))) == kept


@shapes
def test_the_sum_has_to_exceed_the_random_number(shape: str, devices: dict[str, Device]) -> None:
    """As on the CPU. With weights of 1 the sums are exact."""
    logits = np.full(4096, 2.5, np.float32)
    places = [0, 1, 15, 16, 17, 1023, 1024, 2047, 2048, 4095]
    draws = [Draw(place / 4096, 0.7) for place in places]
    assert devices[shape].pick(logits, draws) == places


draws_strategy = st.builds(
    Draw,
    uniform=st.floats(0, 1, exclude_max=True) | st.sampled_from([0.0, 1 - 2.0**-53]),
    temperature=st.sampled_from([5e-324, 1e-38, 1e-3, 0.3, 0.7, 1.0, 3.0, 1e38, 1e308]),
    top_k=st.sampled_from([0, 1, 2, 5, 80, 1000, 2**40]),
    top_p=st.sampled_from([1.0, 1 - 2.0**-53, 0.95, 0.5, 0.01, 5e-324]),
    min_p=st.sampled_from([0.0, 5e-324, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8, 1e-300, 1e300]),
)


@given(
    kind=st.sampled_from([*KINDS]),
    size=st.sampled_from(SIZES),
    seed=st.integers(0, 5),
    draws=st.lists(draws_strategy, min_size=1, max_size=8),
    seen=st.sets(st.integers(0, 5002), max_size=20),
)
@settings(max_examples=150, deadline=None)
def test_the_token_is_that_of_the_definition(
    devices: dict[str, Device],
    kind: str,
    size: int,
    seed: int,
    draws: list[Draw],
    seen: set[int],
) -> None:
    logits = make(kind, size, seed)
    ids = np.array([token for token in seen if token < size], np.int64)
    draws = [evolve(draw, seen=ids) for draw in draws]
    for device in devices.values():
        for draw, token in zip(draws, device.pick(logits, draws), strict=True):
            kept = candidates(logits, draw)
            assert kept.maybe[token]
            if (kept.sure == kept.maybe).all():
                share = probabilities(kept, draw)
                assert share[token] > 0 or draw.temperature < 0.1
                upto = share[: token + 1].sum()
                assert upto - share[token] - ROUNDING <= draw.uniform <= upto + ROUNDING


@shapes
@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf])
def test_unusable_logits_are_told_and_their_neighbours_picked(
    bad: float, shape: str, devices: dict[str, Device]
) -> None:
    rows = np.stack([make("peaked", 5003, seed) for seed in range(4)])
    draws = [Draw(0.3, 1.0, top_k=50, top_p=0.9, min_p=0.01)] * 3
    draws.append(Draw(0.3, 1.0, repetition_penalty=1.1, seen=np.array([5002])))
    expected = [pick(row, draw) for row, draw in zip(rows, draws, strict=True)]
    assert devices[shape].pick(rows, draws) == expected
    rows[1, 77] = rows[3, 5002] = bad
    rows[2] = -math.inf
    assert devices[shape].pick(rows, draws) == [expected[0], -1, -1, -1]


@shapes
def test_the_same_alone_beside_others_and_again(shape: str, devices: dict[str, Device]) -> None:
    random = np.random.default_rng(3)
    rows = np.stack([make(kind, 5003, seed) for seed in range(2) for kind in KINDS])
    draws = [
        Draw(float(random.random()), 1.3, top_k=int(top_k), top_p=0.97, min_p=1e-4)
        for top_k in random.integers(0, 2000, len(rows))
    ]
    alone = [devices[shape].pick(row, [draw])[0] for row, draw in zip(rows, draws, strict=True)]
    for _ in range(10):
        assert devices[shape].pick(rows, draws) == alone


@shapes
@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (Draw(0.9, 5e-324), 2),
        (Draw(0.9, 1e308, top_k=1), 2),
        (Draw(0.9, 5e-324, repetition_penalty=5e-324, seen=np.array([0, 1])), 1),
        (Draw(0.9, 5e-324, repetition_penalty=1e308, seen=np.array([0, 1])), 2),
        (Draw(1 - 2.0**-53, 1e308), 3),
    ],
)
def test_settings_at_the_ends_of_their_ranges(
    draw: Draw, expected: int, shape: str, devices: dict[str, Device]
) -> None:
    logits = np.full(300, -math.inf, np.float32)
    logits[:4] = [-1.0, 2.0, 3.0, 0.0]
    assert devices[shape].pick(logits, [draw]) == [expected]


DISTRIBUTIONS = {
    "all": SamplingSettings(temperature=0.8),
    "penalty": SamplingSettings(temperature=1.2, top_k=60, repetition_penalty=1.4),
    "cuts": SamplingSettings(temperature=1.5, top_k=50, top_p=0.9, min_p=0.02),
}
DRAWN = 8192


def chi_square(found: np.ndarray, expected: np.ndarray) -> tuple[float, int]:
    """Of counts; tokens that are expected fewer than 5 times count as one."""
    often = expected >= 5
    pairs = [*zip(found[often], expected[often], strict=True)]
    if expected[~often].sum() >= 5:
        pairs.append((found[~often].sum(), expected[~often].sum()))
    return sum((f - e) ** 2 / e for f, e in pairs), len(pairs) - 1


@shapes
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_tokens_are_distributed_as_the_cpu_picks_them(
    name: str, shape: str, devices: dict[str, Device]
) -> None:
    asked, size, seen = DISTRIBUTIONS[name], 300, range(0, 300, 7)
    logits = 2 * make("flat", size, seed=4)
    draws = [Sampler(evolve(asked, seed=seed), seen).draw() for seed in range(DRAWN)]
    found = np.bincount(devices[shape].pick(logits, draws), minlength=size)

    def expected(asked: SamplingSettings) -> np.ndarray:
        """By the CPU's own candidates, for evenly spaced random numbers."""
        values = candidates(logits, draws[0]).logits.astype(np.float32)
        kept = Candidates(values, values)
        kept = kept.best(asked.top_k) if asked.top_k else kept
        kept = kept.nucleus(asked.top_p) if asked.top_p < 1 else kept
        kept = kept.at_least(asked.min_p) if asked.min_p else kept
        even = [kept.draw((i + 0.5) / DRAWN, asked.temperature) for i in range(DRAWN)]
        return np.bincount(even, minlength=size)

    # Five standard deviations: a picker that is right exceeds them once in some 10,000 seeds.
    square, freedom = chi_square(found, expected(asked))
    assert freedom > 10
    assert square < freedom + 5 * math.sqrt(2 * freedom)
    other = evolve(asked, temperature=asked.temperature * 1.3)
    square, freedom = chi_square(found, expected(other))
    assert square > freedom + 5 * math.sqrt(2 * freedom)


def piece(row: int, text: Sequence[int], wanted: int = 0, draw: Draw | None = None) -> Slice:
    return Slice(row, 0, np.array(text, np.int64), wanted, draw=draw)


@shapes
def test_a_step_picks_for_some_rows_and_gives_the_logits_of_others(shape: str) -> None:
    """More tokens than are computed at once, and more logits."""
    model = random_model("llama", "Q8_0")
    texts = [tokens(length, seed) for seed, length in enumerate((300, 40, 280, 7))]
    draw = Draw(0.6, 1.5, top_k=50, repetition_penalty=1.2, seen=np.arange(0, VOCAB, 3))
    with on_host(
        model.program, model.weights, shape=shape, context=320, rows=4, picks=True
    ) as executor:
        assert isinstance(executor, PickingExecutor)
        assert executor.picks
        whole = [executor.step([piece(0, text, wanted=40 if index == 1 else 1)]).copy()
                 for index, text in enumerate(texts)]  # fmt: skip
        assert not executor.picked
        draws = [draw, None, evolve(draw, uniform=0.1), None]
        logits = executor.step(
            [
                piece(row, text, 40 if row == 1 else 1, drawn)
                for row, (text, drawn) in enumerate(zip(texts, draws, strict=True))
            ]
        )
        np.testing.assert_array_equal(logits, np.concatenate([whole[1], whole[3]]))
        expected = [pick(whole[row][-1], draws[row] or draw) for row in (0, 2)]
        assert list(executor.picked) == expected
        assert not len(executor.step([piece(3, texts[2], 1, draws[2])]))
        assert list(executor.picked) == expected[1:]


def test_greedy_and_drawn_tokens_of_more_rows_than_are_computed_at_once() -> None:
    """Their logits come in another order than the rows: none may lie where others are computed."""
    model = random_model("llama", "F32")
    draws = [Draw((row + 0.5) / 40, 1.5) if row % 2 else None for row in range(40)]
    with on_host(model.program, model.weights, rows=40, picks=True) as executor:
        rows = [piece(row, [row + 1], 1) for row in range(40)]
        alone = np.concatenate([executor.step([each]).copy() for each in rows])
        slices = [evolve(each, draw=draw) for each, draw in zip(rows, draws, strict=True)]
        np.testing.assert_array_equal(executor.step(slices), alone[::2])
        expected = [pick(alone[row], draw) for row, draw in enumerate(draws) if draw]
        assert list(executor.picked) == expected


def test_more_tokens_are_picked_than_have_their_logits_at_once() -> None:
    model = random_model("llama", "Q8_0")
    with on_host(model.program, model.weights, rows=40, picks=True) as executor:
        assert isinstance(executor, PickingExecutor)
        logits = executor.step([piece(row, [row + 1], 1) for row in range(40)]).copy()
        draws = [Draw((row + 0.5) / 40, 1.5) for row in range(40)]
        executor.step([piece(row, [row + 1], 1, draw) for row, draw in enumerate(draws)])
        assert list(executor.picked) == [pick(*each) for each in zip(logits, draws, strict=True)]


def test_which_lanes_pick() -> None:
    assert [lane.picks for lane in (HipLane(), HostLane(), CpuLane())] == [True, True, False]


def test_draws_that_make_no_sense_are_refused() -> None:
    model = random_model("llama", "Q8_0")
    draw = Draw(0.5, 1.0)
    with pytest.raises(LaneError, match="from the logits of one, not of 0"):
        piece(0, [1, 2], 0, draw)
    with on_host(model.program, model.weights) as executor:
        with pytest.raises(LaneError, match="not compiled to pick"):
            executor.step([piece(0, [1], 1, draw)])
        assert isinstance(executor, PickingExecutor)
        assert not executor.picks
    with on_host(model.program, model.weights, context=8, picks=True) as executor:
        for seen, message in (
            ([VOCAB], "seen tokens are 0 to 95"),
            ([-1], "seen tokens are 0 to 95"),
            (range(9), "9 seen tokens, and 8 are the most"),
        ):
            bad = evolve(draw, repetition_penalty=2.0, seen=np.array(seen))
            with pytest.raises(LaneError, match=message):
                executor.step([piece(0, [1], 1, bad)])


HOT = SamplingSettings(temperature=1.1, top_k=60, top_p=0.98, repetition_penalty=1.1)
ASKED = [
    GenerationRequest(tuple(tokens(3 + seed, seed)), 12, evolve(HOT, seed=seed))
    for seed in range(7)
] + [GenerationRequest((1, 2, 3), 12)]


async def answers(engine: Engine, *, together: bool) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in ASKED]

    async def ask(number: int) -> None:
        async with engine.submit(ASKED[number]) as generation:
            found[number] = [token async for token in generation]

    if together:
        async with trio.open_nursery() as nursery:
            for number in range(len(ASKED)):
                nursery.start_soon(ask, number)
    else:
        for number in range(len(ASKED)):
            await ask(number)
    return found


def test_an_engine_gives_a_seed_the_same_tokens_alone_and_in_company() -> None:
    model = random_model("qwen3", "BF16")

    async def ask(rows: int, *, picks: bool, together: bool) -> list[list[int]]:
        with on_host(model.program, model.weights, rows=rows, picks=picks) as executor:
            async with running_engine(executor, context=64, rows=rows) as engine:
                first = await answers(engine, together=together)
                assert await answers(engine, together=not together) == first
                return first

    device = trio.run(lambda: ask(8, picks=True, together=False))
    host = trio.run(lambda: ask(8, picks=False, together=True))
    # As with one row, where the CPU picks in any case.
    assert trio.run(lambda: ask(1, picks=False, together=False)) == host
    assert host[-1] == device[-1]
    assert len({*map(tuple, device)}) == len(ASKED)
