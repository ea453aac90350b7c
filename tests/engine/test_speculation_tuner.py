"""The tuner against simulated texts and machines, and the averages that it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from caldrix.engine.speculation.averages import UNKNOWN, Averages, Costs, Estimate, Pace
from caldrix.engine.speculation.tuner import LONGEST_DRAFT, Tuner, TunerState

FREE = (0.0,) * 9
A_QUARTER = tuple(0.25 * length for length in range(9))
"""A draft model: each token takes a quarter of a plain step."""

Rates = Callable[[int], Sequence[float]]
"""From a step's number to how often each position of a draft is right."""


def always(rate: float) -> Rates:
    return lambda step: (rate,) * LONGEST_DRAFT


@frozen
class Machine:
    """Seconds of steps with a draft of 0, 1, … tokens, and of drafting them."""

    steps: tuple[float, ...]
    proposing: tuple[float, ...] = FREE

    def rate(self, rates: Sequence[float], length: int) -> float:
        """Tokens a second with drafts of this length."""
        tokens = 1 + sum(np.prod(rates[:count]) for count in range(1, length + 1))
        return float(tokens / (self.steps[length] + self.proposing[length]))

    def best(self, rates: Sequence[float]) -> float:
        return max(self.rate(rates, length) for length in range(LONGEST_DRAFT + 1))


FLAT = (1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4)
"""Bound by memory: further tokens cost little."""
TILES = (1.0, 1.5, 1.7, 1.8, 2.0, 2.2, 2.3, 2.4, 2.5)
STAIRS = (1.0, 1.6, 1.9, 2.2, 2.3, 2.8, 3.0, 3.2, 3.4)
"""A length of 4 costs hardly more than one of 3."""


@frozen
class Run:
    lengths: list[int]
    rate: float
    """Tokens a second."""


def simulate(tuner: Tuner, machine: Machine, rates: Rates, steps: int, kind: int = 0) -> Run:
    """Decodes, with steps whose times vary by a tenth either way."""
    luck = np.random.Generator(np.random.PCG64(3))
    lengths, tokens, seconds = [], 0, 0.0
    for step in range(steps):
        length = tuner.choose(kind)
        right = luck.random(LONGEST_DRAFT) < np.array(rates(step))
        accepted = int(np.argmin([*right[:length], False]))
        taken = machine.steps[length] * (0.9 + 0.2 * luck.random())
        tuner.record(kind, length, accepted, taken, proposing=machine.proposing[length])
        lengths.append(length)
        tokens += accepted + 1
        seconds += taken + machine.proposing[length]
    return Run(lengths, tokens / seconds)


@pytest.mark.parametrize("steps", [FLAT, TILES, STAIRS], ids=["flat", "tiles", "stairs"])
@pytest.mark.parametrize("proposing", [FREE, A_QUARTER], ids=["free", "draft"])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0])
def test_it_comes_near_the_best_length(
    steps: tuple[float, ...], proposing: tuple[float, ...], rate: float
) -> None:
    machine = Machine(steps, proposing)
    run = simulate(Tuner(1), machine, always(rate), 2000)
    assert run.rate > 0.87 * machine.best(always(rate)(0))
    assert run.rate > 0.97 * machine.rate(always(rate)(0), 0)


@pytest.mark.parametrize(
    ("rates", "best"),
    [((1.0, 0, 0, 0, 0, 0, 0, 0), 1), ((1.0, 1.0, 1.0, 0, 0, 0, 0, 0), 3)],
)
def test_rates_of_positions_are_told_apart(rates: Sequence[float], best: int) -> None:
    run = simulate(Tuner(1), Machine(TILES), lambda step: rates, 400)
    assert run.lengths[100:].count(best) > 250


@pytest.mark.parametrize("steps", [FLAT, TILES, STAIRS], ids=["flat", "tiles", "stairs"])
@pytest.mark.parametrize("proposing", [FREE, A_QUARTER], ids=["free", "draft"])
def test_hopeless_text_costs_less_than_a_fiftieth(
    steps: tuple[float, ...], proposing: tuple[float, ...]
) -> None:
    run = simulate(Tuner(1), Machine(steps, proposing), always(0.0), 1000)
    assert run.rate > 0.98
    # It does go on looking.
    assert any(run.lengths[-300:])


@pytest.mark.parametrize("steps", [FLAT, TILES], ids=["flat", "tiles"])
def test_it_wakes_up_where_text_becomes_predictable(steps: tuple[float, ...]) -> None:
    run = simulate(Tuner(1), Machine(steps), lambda step: (float(step >= 500),) * 8, 620)
    assert run.lengths[400:500].count(0) > 70
    assert np.mean(run.lengths[-20:]) >= 6


def test_it_stops_where_text_becomes_unpredictable() -> None:
    run = simulate(Tuner(1), Machine(TILES), lambda step: (float(step < 500),) * 8, 600)
    assert np.mean(run.lengths[480:500]) >= 6
    assert run.lengths[-50:].count(0) >= 40


def test_kinds_are_told_apart() -> None:
    tuner = Tuner(2)
    for _ in range(20):
        simulate(tuner, Machine(TILES), always(0.0), 20, kind=0)
        simulate(tuner, Machine(TILES), always(1.0), 20, kind=1)
    assert simulate(tuner, Machine(TILES), always(0.0), 20, kind=0).lengths.count(0) >= 18
    assert np.mean(simulate(tuner, Machine(TILES), always(1.0), 20, kind=1).lengths) >= 6


def test_the_first_step_is_plain_and_the_second_a_trial() -> None:
    tuner = Tuner(1)
    assert tuner.choose(0) == 0
    tuner.record(0, 0, 0, 0.01)
    assert tuner.choose(0) == 1


def test_one_stall_is_not_held_against_a_length() -> None:
    tuner = Tuner(1)
    simulate(tuner, Machine(TILES), always(1.0), 100)
    tuner.record(0, 8, 8, 1000.0)
    assert tuner.choose(0) >= 6
    assert tuner.state.steps[8].value < 1.2 * TILES[8]
    assert np.mean(simulate(tuner, Machine(TILES), always(1.0), 30).lengths) >= 6


def test_a_trial_pays_for_catching_up() -> None:
    """A draft model that reads what it missed; without a limit that would be every trial's."""
    machine, luck = Machine(TILES, A_QUARTER), 0
    tuner = Tuner(1)
    for _ in range(2000):
        length = tuner.choose(0)
        tuner.record(
            0, length, 0, machine.steps[length], proposing=machine.proposing[length],
            catching_up=5.0 if length else 0.0,
        )  # fmt: skip
        luck += bool(length)
    # For a hundredth of the time, and the credit to begin with.
    assert 1 <= luck <= 5


@pytest.mark.parametrize("length", [1, 8])
def test_a_fixed_length_is_always_used_and_still_learned_from(length: int) -> None:
    tuner = Tuner(1, fixed=length)
    run = simulate(tuner, Machine(STAIRS, A_QUARTER), always(0.0), 30)
    assert run.lengths == [length] * 30
    assert tuner.state.steps[length].weight > 10
    assert tuner.state.acceptance[0][0].weight > 10


def test_a_state_takes_up_where_it_was() -> None:
    tuner = Tuner(1)
    simulate(tuner, Machine(TILES), always(1.0), 200)
    again = Tuner(1, state=tuner.state)
    assert again.state == tuner.state
    assert again.choose(0) >= 6
    with pytest.raises(ValueError, match="1 kinds, not of 2"):
        Tuner(2, state=tuner.state)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8), st.floats(0, 1e6)), max_size=30))
def test_whatever_it_is_told_it_chooses_a_length(steps: list[tuple[int, int, float]]) -> None:
    tuner = Tuner(1)
    for proposed, accepted, seconds in steps:
        assert 0 <= tuner.choose(0) <= LONGEST_DRAFT
        tuner.record(0, proposed, min(proposed, accepted), seconds, proposing=seconds)
    assert Tuner(1, state=tuner.state).state == tuner.state


def test_states_of_a_wrong_shape() -> None:
    state = TunerState.fresh(1)
    with pytest.raises(ValueError, match="up to 8 tokens"):
        TunerState(state.acceptance, state.steps[1:], state.drafting)
    with pytest.raises(ValueError, match="the cost of a plain step"):
        TunerState(state.acceptance, (Estimate(0.0, 1.0), *state.steps[1:]), state.drafting)
    with pytest.raises(ValueError, match="at most 1"):
        TunerState(((Estimate(1.5, 1.0),) * 8,), state.steps, state.drafting)
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="value"):
            Estimate(value, 1.0)


def test_what_was_watched_counts_as_if_verified() -> None:
    tuner = Tuner(2)
    simulate(tuner, Machine(TILES), always(0.0), 200, kind=1)
    for _ in range(30):
        tuner.watch(1, 0, right=True)
    assert tuner.choose(1) > 0
    assert tuner.state.acceptance[0] == (UNKNOWN,) * 8


def test_averages_are_of_late() -> None:
    averages = Averages([UNKNOWN] * 2)
    averages.observe(0, 4.0)
    averages.observe(0, 2.0)
    assert averages.values == [pytest.approx((0.95 * 4 + 2) / 1.95), 0.0]
    averages.age()
    assert averages.weights == [pytest.approx(1.95 * 0.995), 0.0]
    for _ in range(200):
        averages.observe(0, 1.0)
    assert averages.values[0] == pytest.approx(1.0, abs=1e-3)


def test_costs_are_expected_to_go_on_from_the_length_before() -> None:
    costs = Costs([Estimate(10.0, 1.0), *[UNKNOWN] * 3])
    assert costs.expected == pytest.approx([10, 11, 12, 13])
    costs.observe(2, 16.0)
    assert costs.expected == pytest.approx([10, 11, 14, 15])
    # Beyond belief: half as much again counts.
    assert costs.observe(1, 1e6) == pytest.approx(16.5)
    assert costs.expected == pytest.approx([10, 13.75, (16 + 14.75) / 2, (16 + 14.75) / 2 + 1])
    for _ in range(200):
        costs.observe(1, 20.0)
    assert costs.expected[1] == pytest.approx((20 * 20 + 11) / 21, rel=1e-3)


def test_a_pace_follows_the_machine_and_not_a_stall() -> None:
    pace = Pace()
    pace.follow(2.0, expected=1.0, weight=1.0)
    assert pace.cost(3.0, 0.0) == pytest.approx(1.5)
    # A step of which it is known that it takes thrice as long as a plain one.
    pace.follow(6.0, expected=3.0, weight=9.0)
    assert pace.cost(2.0, 0.0) == pytest.approx(1.0)
    pace.follow(2000.0, expected=1.0, weight=9.0)
    assert 0.7 < pace.cost(2.0, 0.0) < 1.0
    for _ in range(20):
        pace.follow(1.0, expected=1.0, weight=9.0)
    assert pace.cost(1.0, 0.0) == pytest.approx(1.0, rel=1e-3)


def test_costs_hold_while_the_machine_changes() -> None:
    """Learned on a slow machine, used on a fast one: lengths compare as they did."""
    tuner = Tuner(1)
    slow = Machine(tuple(5 * seconds for seconds in TILES))
    simulate(tuner, slow, always(1.0), 100)
    assert np.mean(simulate(tuner, Machine(TILES), always(1.0), 30).lengths) >= 6
    assert tuner.state.steps[8].value / tuner.state.steps[0].value == pytest.approx(2.5, rel=0.3)
