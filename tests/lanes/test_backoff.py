"""The choice of threads on simulated machines: quiet, beside a neighbour, with growing contexts.

Times are those of a two-core machine decoding a small model, in seconds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from statistics import mean

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from caldrix_cpu.backoff import ThreadChoice

TWO_THREADS, ONE_THREAD = 0.0046, 0.0061
DECODE, PREFILL = 0, 1
SEEDS = range(20)


@define
class Machine:
    """Two cores, of which a neighbour may use one, in time slices."""

    random: random.Random
    neighbour: bool = False
    outliers: float = 0.005
    growth: float = 1.0
    sliced: bool = field(default=False, init=False)

    def step(self, threads: int) -> float:
        if threads == 1:
            slowest = 0.0065 if self.neighbour else 0.0063
            return self.growth * self.random.uniform(ONE_THREAD, slowest)
        if self.random.random() < self.outliers:
            return 10 * TWO_THREADS
        self.sliced = self.neighbour and self.random.random() < (0.9 if self.sliced else 0.7)
        if self.sliced:
            return self.growth * self.random.uniform(0.009, 0.020)
        return self.growth * self.random.uniform(0.97, 1.03) * TWO_THREADS


def run(
    choice: ThreadChoice, steps: int, step: Callable[[int], float], kind: int = DECODE
) -> Iterator[tuple[int, float]]:
    """The threads and seconds of each step."""
    for _ in range(steps):
        threads = choice.choose(kind)
        seconds = step(threads)
        choice.record(kind, threads, seconds)
        yield threads, seconds


def share_of_all(taken: Sequence[tuple[int, float]], most: int = 2) -> float:
    return mean(threads == most for threads, _ in taken)


def rate(taken: Sequence[tuple[int, float]]) -> float:
    """Steps a second."""
    return len(taken) / sum(seconds for _, seconds in taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quiet_machine_uses_all_threads(seed: int) -> None:
    machine = Machine(random.Random(seed))
    taken = list(run(ThreadChoice(2), 2000, machine.step))
    assert share_of_all(taken) > 0.98
    assert taken[-1][0] == 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("quiet", [0, 4, 19, 300])
def test_beside_a_neighbour_it_is_not_much_slower_than_one_thread(seed: int, quiet: int) -> None:
    machine, choice = Machine(random.Random(seed)), ThreadChoice(2)
    list(run(choice, quiet, machine.step))
    machine.neighbour = True
    one_thread = 2 / (0.0061 + 0.0065)
    for _ in range(5):
        assert rate(list(run(choice, 200, machine.step))) > 0.9 * one_thread


def test_a_neighbour_that_often_pauses_does_not_make_it_waver() -> None:
    def decoding(seed: int) -> float:
        source = random.Random(seed)

        def step(threads: int) -> float:
            if threads == 1:
                return source.uniform(ONE_THREAD, 0.0065)
            return source.uniform(0.009, 0.020) if source.random() < 0.3 else TWO_THREADS

        return rate(list(run(ThreadChoice(2), 1500, step)))

    assert mean(map(decoding, SEEDS)) > 0.94 / 0.0063


def test_two_threads_alone_would_be_much_slower_there() -> None:
    machine = Machine(random.Random(0), neighbour=True)
    assert mean(machine.step(2) for _ in range(1000)) > 1.5 * 0.0063


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("beside", [30, 200, 1000])
def test_once_the_neighbour_left_all_threads_are_back_soon(seed: int, beside: int) -> None:
    machine, choice = Machine(random.Random(seed), neighbour=True), ThreadChoice(2)
    list(run(choice, beside, machine.step))
    # An outlier may spoil a look; the question here is when the look comes.
    machine.neighbour, machine.outliers = False, 0.0
    back = list(run(choice, 90, machine.step))
    assert sum(seconds for threads, seconds in back if threads == 1) < 0.56
    machine.outliers = 0.005
    assert share_of_all(list(run(choice, 500, machine.step))) > 0.98


@pytest.mark.parametrize("seed", SEEDS)
def test_a_growing_context_is_no_neighbour(seed: int) -> None:
    machine, choice = Machine(random.Random(seed)), ThreadChoice(2)
    taken: list[tuple[int, float]] = []
    for _ in range(5):
        for step in range(400):
            machine.growth = 1 + 0.4 * step / 400
            taken += run(choice, 1, machine.step)
    assert share_of_all(taken) > 0.98


def test_a_step_up_in_time_costs_a_short_look_only() -> None:
    machine, choice = Machine(random.Random(1)), ThreadChoice(2)
    list(run(choice, 100, machine.step))
    machine.growth = 1.6
    assert [threads for threads, _ in run(choice, 100, machine.step)].count(1) <= 2


def test_threads_that_never_help_are_given_up() -> None:
    def step(threads: int) -> float:
        return 0.006 if threads == 1 else 0.008

    assert share_of_all(list(run(ThreadChoice(2), 500, step))) < 0.1


@pytest.mark.parametrize(("busy", "expected"), [(1, 7), (3, 4), (7, 1)])
@pytest.mark.parametrize("quiet", [0, 100])
def test_many_cores_keep_as_many_as_are_free(busy: int, expected: int, quiet: int) -> None:
    neighbours = 0

    def step(threads: int) -> float:
        waiting = 0.1 if threads > 8 - neighbours else 0.0
        return 0.04 / math.pow(threads, 0.8) + waiting

    choice = ThreadChoice(8)
    list(run(choice, quiet, step))
    neighbours = busy
    list(run(choice, 40, step))
    settled = [threads for threads, _ in run(choice, 100, step)]
    assert settled.count(expected) > 90
    neighbours = 0
    back = list(run(choice, 150, step))
    assert share_of_all(back[-50:], 8) > 0.9


def test_a_rare_kind_comes_back_while_another_one_runs() -> None:
    machine, choice = Machine(random.Random(2)), ThreadChoice(2)

    def prefill(threads: int) -> float:
        return 0.2 if threads == 1 else 0.5 if machine.neighbour else 0.11

    list(run(choice, 10, prefill, PREFILL))
    machine.neighbour = True
    assert [threads for threads, _ in run(choice, 10, prefill, PREFILL)][-3:] == [1, 1, 1]
    machine.neighbour = False
    list(run(choice, 400, machine.step, DECODE))
    assert [threads for threads, _ in run(choice, 10, prefill, PREFILL)] == [2] * 10


def gaps(taken: Sequence[tuple[int, float]]) -> list[int]:
    """Steps on one thread between those on two."""
    runs = "".join(str(threads) for threads, _ in taken).strip("1").split("2")
    return [len(ones) for ones in runs if ones]


def test_looks_in_vain_become_rarer_but_not_rare() -> None:
    def step(threads: int) -> float:
        return 0.0061 if threads == 1 else 0.014

    first, second, *later = gaps(list(run(ThreadChoice(2), 700, step)))
    assert 20 <= first < second < later[0] == later[-1]
    assert 0.49 < later[0] * 0.0061 < 0.51


def test_a_neighbour_that_was_only_pausing_is_not_soon_tried_again() -> None:
    pausing = False

    def step(threads: int) -> float:
        return 0.0061 if threads == 1 else 0.0046 if pausing else 0.014

    choice = ThreadChoice(2)
    list(run(choice, 20, step))
    pausing = True
    list(run(choice, 40, step))
    assert choice.choose(DECODE) == 2
    pausing = False
    list(run(choice, 10, step))
    first, *_ = gaps([(2, 0.0), *run(choice, 100, step)])
    assert first >= 40


def test_a_new_kind_begins_without_a_look() -> None:
    machine, choice = Machine(random.Random(4)), ThreadChoice(2)
    list(run(choice, 300, machine.step, DECODE))
    assert [threads for threads, _ in run(choice, 6, machine.step, PREFILL)] == [2] * 6


def test_looking_at_long_steps_does_not_take_much() -> None:
    def prefill(threads: int) -> float:
        return 0.2 if threads == 1 else 0.5

    choice = ThreadChoice(2)
    list(run(choice, 40, prefill, PREFILL))
    assert share_of_all(list(run(choice, 90, prefill, PREFILL))) <= 1 / 9


def test_one_thread_is_no_choice() -> None:
    machine = Machine(random.Random(3), neighbour=True)
    assert {threads for threads, _ in run(ThreadChoice(1), 100, machine.step)} == {1}


@given(
    most=st.integers(1, 70),
    steps=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 1e4))),
)
def test_any_times_are_taken(most: int, steps: list[tuple[int, float]]) -> None:
    choice = ThreadChoice(most)
    for kind, seconds in steps:
        threads = choice.choose(kind)
        assert 1 <= threads <= most
        assert choice.choose(kind) == threads
        choice.record(kind, threads, seconds)


def test_misuse_is_an_error() -> None:
    with pytest.raises(ValueError, match="with 0 threads"):
        ThreadChoice(0)
    choice = ThreadChoice(2)
    with pytest.raises(ValueError, match="not to run on 2 threads"):
        choice.record(DECODE, 2, 1.0)
    choice.choose(DECODE)
    with pytest.raises(ValueError, match="not to run on 1 threads"):
        choice.record(DECODE, 1, 1.0)
