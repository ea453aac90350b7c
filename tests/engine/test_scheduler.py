"""What a step computes: who has a part in it, and how large a part."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.engine.generation import GeneratedSequence, GenerationRequest
from caldrix.engine.rows import Rows
from caldrix.engine.scheduler import Scheduler, Work
from caldrix.engine.sequence import Sequence
from caldrix.models.lane import PrefillSizes
from tests.support.scripted import ScriptedExecutor, endless

CONTEXT = 8192
TOKEN = 2
PREFILL = PrefillSizes(alone=128, shared=64)


class Machine:
    """A scheduler and the lane it plans for, stepped by hand."""

    def __init__(self, rows: int, prefill: PrefillSizes = PREFILL) -> None:
        self.executor = ScriptedExecutor(endless(TOKEN), 10)
        self.scheduler = Scheduler(
            Rows(self.executor, rows, 0, 0), rows, queue_depth=64, prefill=prefill
        )

    def ask(self, prompt: SequenceOf[int], max_tokens: int = 4) -> GeneratedSequence:
        sequence = GeneratedSequence(GenerationRequest(tuple(prompt), max_tokens), CONTEXT)
        self.scheduler.admit(sequence)
        return sequence

    def step(self) -> SequenceOf[Work]:
        self.scheduler.turn_over()
        work = self.scheduler.plan()
        if work:
            self.executor.step([item.slice for item in work])
        for item in work:
            item.sequence.advance(item.slice, [TOKEN] * item.slice.wanted)
        return work


def sizes(work: SequenceOf[Work]) -> dict[Sequence, int]:
    return {item.sequence: len(item.slice.tokens) for item in work}


HALF = PREFILL.shared // 2


@pytest.mark.parametrize(("rows", "expected"), [(1, 300), (2, 70)])
def test_the_lane_says_how_much_of_a_prompt_a_step_takes(rows: int, expected: int) -> None:
    machine = Machine(rows, PrefillSizes(alone=300, shared=70))
    prompt = machine.ask([1] * 500)
    assert sizes(machine.step()) == {prompt: expected}


def test_one_row_takes_larger_slices() -> None:
    machine = Machine(rows=1)
    first, second = machine.ask([1] * 200, max_tokens=1), machine.ask([2] * 30)
    assert [sizes(machine.step()) for _ in range(3)] == [
        {first: PREFILL.alone}, {first: 200 - PREFILL.alone}, {second: 30}
    ]  # fmt: skip


def test_a_short_prompt_passes_a_long_one() -> None:
    machine = Machine(rows=2)
    long = machine.ask([1] * 4000)
    assert sizes(machine.step()) == {long: PREFILL.shared}
    short = machine.ask([3] * 20, max_tokens=1)
    assert sizes(machine.step()) == {long: PREFILL.shared - 20, short: 20}
    assert sizes(machine.step()) == {long: PREFILL.shared}


def test_what_the_oldest_leaves_is_the_shortests() -> None:
    machine = Machine(rows=4)
    oldest = machine.ask([1] * 4000)
    longer, shorter = machine.ask([2] * 300), machine.ask([3] * 200)
    assert sizes(machine.step()) == {oldest: HALF, shorter: HALF}
    shortest = machine.ask([4] * 12)
    assert sizes(machine.step()) == {oldest: HALF, shortest: 12, shorter: HALF - 12}
    assert longer.row is None


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("before", [0, 1, 20])
@pytest.mark.parametrize("size", [30, 200, 300])
def test_many_short_prompts_cannot_stop_a_long_one(rows: int, before: int, size: int) -> None:
    """However many there are and whoever was first: each of those who come later gets half."""
    machine = Machine(rows)
    clients: list[GeneratedSequence] = []
    numbers = count()
    steps = 0

    def step() -> None:
        nonlocal steps
        clients[:] = [each for each in clients if not each.ended]
        while len(clients) < 2 * rows:
            # No two of them begin alike.
            name = [int(digit) for digit in f"{next(numbers):04}"]
            clients.append(machine.ask([*name, *([3] * size)], max_tokens=1))
        machine.step()
        steps += 1

    for _ in range(before):
        step()
    long = machine.ask([1] * 400, max_tokens=1)
    ahead = sum(each.missing for each in machine.scheduler.everyone())
    steps = 0
    while not long.ended:
        step()
        assert steps <= ahead / HALF + 2


def test_decoding_sequences_have_their_part_in_every_step() -> None:
    machine = Machine(rows=3)
    running = machine.ask([1], max_tokens=100)
    machine.step()
    machine.step()
    first, second = machine.ask([3] * 500), machine.ask([4] * 300)
    assert sizes(machine.step()) == {running: 1, first: HALF, second: HALF}


def test_rows_are_given_in_the_order_of_arrival() -> None:
    machine = Machine(rows=1)
    asked = [machine.ask([number] * length) for number, length in enumerate((50, 3, 20), 1)]
    ended: list[GeneratedSequence] = []
    while machine.step():
        ended += [each for each in asked if each.ended and each not in ended]
    assert ended == asked


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 4),
    asks=st.lists(
        st.tuples(st.integers(1, 1500), st.integers(1, 6), st.integers(0, 12)), max_size=12
    ),
)
def test_every_step_is_bounded_and_everyone_is_served(
    rows: int, asks: list[tuple[int, int, int]]
) -> None:
    machine = Machine(rows)
    sequences: list[GeneratedSequence] = []
    for step in range(600):
        sequences += [
            machine.ask([1 + number % 7] * length, max_tokens)
            for number, (length, max_tokens, arrival) in enumerate(asks)
            if arrival == step
        ]
        decoding = sum(each.decoding for each in sequences if not each.ended)
        work = machine.step()
        assert len({item.slice.row for item in work}) == len(work) <= rows
        # Whoever decodes has its token in every step, and prompts have what they may beside them.
        prompts = sum(sizes(work).values()) - decoding
        assert 0 <= prompts <= (PREFILL.alone if rows == 1 else PREFILL.shared)
        assert machine.scheduler.running <= rows
        if step >= 12 and not work:
            break
    assert [each.generated for each in sequences] == [each.limit for each in sequences]
    assert (machine.scheduler.running, machine.scheduler.waiting) == (0, 0)
