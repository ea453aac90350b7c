"""Drafts over a scripted executor, and what a speculator makes of a proposer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import structlog
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from caldrix.engine.speculation.draft import DraftProposer
from caldrix.engine.speculation.ngram import NgramProposer, SuffixLengths
from caldrix.engine.speculation.proposer import Guess
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.speculation.tuner import Tuner, TunerState
from caldrix.models.lane import LaneLost, Slice
from caldrix.weights.tensor import Float32
from tests.support.scripted import ScriptedExecutor

VOCAB = 50
CONTEXT = 2000


def following(prompt: Sequence[int], generated: Sequence[int]) -> int:
    """The script of a model that counts: the next token is the sum of the last two and one."""
    return next_of([*prompt, *generated])


def next_of(tokens: Sequence[int]) -> int:
    return (sum(tokens[-2:]) + 1) % VOCAB


def continued(tokens: Sequence[int], count: int) -> tuple[int, ...]:
    text = list(tokens)
    for _ in range(count):
        text.append(next_of(text))
    return tuple(text[len(tokens) :])


class WatchedExecutor(ScriptedExecutor):
    """Keeps the slices that it computed."""

    def __init__(self, *, vocab_size: int = VOCAB, memory: int | None = None) -> None:
        super().__init__(following, vocab_size, memory=memory)
        self.slices: list[tuple[int, int, int]] = []
        """Start, tokens and wanted logits of each."""
        self.raises: Exception | None = None

    def step(self, slices: Sequence[Slice]) -> Float32:
        (item,) = slices
        self.slices.append((item.start, len(item.tokens), item.wanted))
        if self.raises is not None:
            raise self.raises
        return super().step(slices)


def drafting(
    executor: ScriptedExecutor, *, context: int = CONTEXT, vocab_size: int = VOCAB
) -> DraftProposer:
    proposer = DraftProposer(executor, context=context, vocab_size=vocab_size)
    proposer.begin()
    return proposer


@pytest.mark.parametrize("most", [1, 3, 8])
def test_it_drafts_what_its_model_would_say(most: int) -> None:
    executor = WatchedExecutor()
    assert drafting(executor).propose([3, 4], most) == Guess(continued([3, 4], most))
    assert executor.slices == [(0, 2, 1), *((start, 1, 1) for start in range(2, most + 1))]


def test_reading_leaves_the_last_token_and_goes_in_slices() -> None:
    executor = WatchedExecutor()
    proposer = drafting(executor)
    prompt = [token % VOCAB for token in range(1200)]
    proposer.read([])
    proposer.read(prompt[:1])
    proposer.read(prompt[:100])
    proposer.read(prompt)
    assert executor.slices == [(0, 99, 0), (99, 512, 0), (611, 512, 0), (1123, 76, 0)]
    proposer.read(prompt)
    assert proposer.propose(prompt, 1) == Guess(continued(prompt, 1))
    assert executor.slices[4:] == [(1199, 1, 1)]


def test_what_was_right_is_not_computed_again() -> None:
    executor = WatchedExecutor()
    proposer = drafting(executor)
    guess = proposer.propose([1, 2], 4).tokens
    executor.slices.clear()
    # Two were right, then the model said something else.
    tokens = [1, 2, *guess[:2], 9]
    assert proposer.propose(tokens, 2) == Guess(continued(tokens, 2))
    assert executor.slices == [(4, 1, 1), (5, 1, 1)]
    # All were right, and the model's own token follows: the last draft token was never computed.
    tokens = [*tokens, *continued(tokens, 2), 7]
    executor.slices.clear()
    assert proposer.propose(tokens, 1) == Guess(continued(tokens, 1))
    assert executor.slices == [(6, 2, 1)]


def test_the_next_sequence_goes_on_from_what_it_shares() -> None:
    executor = WatchedExecutor()
    proposer = drafting(executor)
    proposer.read([1, 2, 3, 4, 5, 6])
    proposer.begin()
    executor.slices.clear()
    # Read piece by piece, it loses nothing of what comes later.
    proposer.read([1, 2])
    proposer.read([1, 2, 3, 4, 9, 9])
    assert executor.slices == [(4, 1, 0)]
    assert proposer.propose([1, 2, 3, 4, 9, 9], 2) == Guess(continued([9, 9], 2))


def test_a_model_that_forgets_begins_anew() -> None:
    executor = WatchedExecutor(memory=2)
    proposer = drafting(executor)
    proposer.propose([1, 2, 3, 4, 5], 3)
    executor.slices.clear()
    assert proposer.propose([1, 2, 9], 1) == Guess(continued([1, 2, 9], 1))
    assert executor.slices == [(0, 3, 1)]


@pytest.mark.parametrize(("length", "drafted"), [(17, 4), (18, 3), (20, 1), (21, 0), (40, 0)])
def test_near_the_end_of_its_context_it_proposes_fewer(length: int, drafted: int) -> None:
    executor = WatchedExecutor()
    proposer = drafting(executor, context=20)
    tokens = [1] * length
    proposer.read(tokens)
    assert proposer.propose(tokens, 4) == Guess(continued(tokens, drafted))
    assert all(start + count <= 20 for start, count, _ in executor.slices)


def test_a_token_that_it_lacks_ends_its_guesses_for_the_sequence() -> None:
    executor = WatchedExecutor()
    proposer = drafting(executor)
    assert proposer.propose([1, 2], 1) == Guess((4,))
    steps = executor.steps
    for tokens in ([1, 2, VOCAB], [1, 2, VOCAB, 3]):
        proposer.read(tokens)
        assert proposer.propose(tokens, 4) == Guess()
    assert executor.steps == steps
    proposer.begin()
    assert proposer.propose([1, 2], 1) == Guess((4,))


def test_it_never_says_a_token_that_the_model_lacks() -> None:
    (token,) = drafting(WatchedExecutor(), vocab_size=10).propose([5, 6], 1).tokens
    assert token < 10


@pytest.mark.parametrize("error", [RuntimeError("broken"), LaneLost("the device is gone")])
def test_a_failure_is_logged_once_and_proposes_nothing(error: Exception) -> None:
    executor = WatchedExecutor()
    proposer = drafting(executor)
    executor.raises = error
    with structlog.testing.capture_logs() as logs:
        assert proposer.propose([1, 2], 4) == Guess()
        proposer.read([1, 2, 3, 4])
        assert proposer.propose([1, 2, 3, 4, 5], 4) == Guess()
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("draft_failed", "error")
    assert len(executor.slices) == 1
    # The next sequence has its guesses again, unless there is nothing to make them with.
    executor.raises = None
    proposer.begin()
    again = Guess() if isinstance(error, LaneLost) else Guess((4,))
    assert proposer.propose([1, 2], 1) == again


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["begin", "read", "propose"]),
            st.lists(st.integers(0, 2), min_size=1, max_size=4),
            st.integers(1, 8),
        ),
        max_size=20,
    )
)
def test_its_drafts_do_not_depend_on_what_was_before(
    calls: list[tuple[str, list[int], int]],
) -> None:
    proposer = drafting(WatchedExecutor())
    tokens: list[int] = [1]
    for call, more, most in calls:
        if call == "begin":
            proposer.begin()
            tokens = more
        else:
            tokens = tokens + more
        if call == "propose":
            assert proposer.propose(tokens, most) == Guess(continued(tokens, most))
        else:
            proposer.read(tokens)


@define
class FakeProposer:
    """Proposes the same long guess, and keeps what it was asked."""

    kinds: int
    asked: list[int] = field(factory=list)
    read_to: list[int] = field(factory=list)
    kind: int = 0

    def begin(self) -> None:
        self.read_to.clear()

    def read(self, tokens: Sequence[int]) -> None:
        self.read_to.append(len(tokens))

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        self.asked.append(most)
        return Guess((7,) * most, self.kind)


@pytest.mark.parametrize(("kinds", "asked", "given"), [(1, [3, 2], [3, 2]), (2, [8, 2], [3, 2])])
def test_the_length_is_chosen_first_where_the_kind_is_known(
    kinds: int, asked: list[int], given: list[int]
) -> None:
    proposer = FakeProposer(kinds, kind=kinds - 1)
    speculator = Speculator(proposer, Tuner(kinds, fixed=3))
    assert [len(speculator.guess([1], most).tokens) for most in (20, 2)] == given
    assert proposer.asked == asked
    assert speculator.guess([1], 0) == Guess()
    assert proposer.asked == asked


def test_steps_before_which_nothing_was_asked_tell_nothing() -> None:
    tuner = Tuner(1)
    speculator = Speculator(FakeProposer(1), tuner)
    speculator.begin()
    speculator.read([1, 2])
    speculator.record(Guess(), 0, 99.0)
    assert tuner.state == TunerState.fresh(1)
    guess = speculator.guess([1, 2], 8)
    assert guess == Guess()
    speculator.record(guess, 0, 0.5)
    speculator.record(guess, 0, 99.0)
    assert tuner.state.steps[0].value == 1.0
    assert len(speculator.guess([1, 2], 8).tokens) == 1
    speculator.record(Guess((7,)), 1, 0.5)
    assert tuner.state.acceptance[0][0].value == 1.0
    assert tuner.state.drafting.weight == 1.0


def test_a_proposer_that_was_not_asked_catches_up_first() -> None:
    proposer = FakeProposer(1)
    speculator = Speculator(proposer, Tuner(1))
    for length in range(1, 4):
        guess = speculator.guess([1] * length, 8)
        speculator.record(guess, len(guess.tokens), 0.5)
    assert proposer.read_to == [2]


def test_what_was_cut_off_is_looked_back_at() -> None:
    def learned(tokens: Sequence[int], *following: int) -> list[tuple[float, float]]:
        """What is known of the second kind once the step gave the tokens that follow."""
        tuner = Tuner(2, fixed=2)
        speculator = Speculator(FakeProposer(2, kind=1), tuner)
        guess = speculator.guess(tokens, 8)
        accepted = sum(token == 7 for token in following[:2])
        speculator.record(guess, accepted, 1.0)
        speculator.guess([*tokens, *following], 8)
        return [(each.value, each.weight) for each in tuner.state.acceptance[1][:4]]

    nothing, right, wrong = (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)
    assert learned([1], 7, 7, 7) == [right, right, right, nothing]
    assert learned([1], 7, 7, 5) == [right, right, wrong, nothing]
    assert learned([1], 7, 5) == [right, wrong, nothing, nothing]
    assert learned([1], 5) == [wrong, nothing, nothing, nothing]


def test_lookup_is_cut_to_what_is_worth_verifying() -> None:
    tuner = Tuner(3)
    speculator = Speculator(NgramProposer(SuffixLengths()), tuner)
    tokens = [1, 2, 3, 4] * 3
    lengths = []
    for _ in range(40):
        guess = speculator.guess(tokens, 8)
        assert guess.tokens == ((1, 2, 3, 4) * 2)[: len(guess.tokens)]
        lengths.append(len(guess.tokens))
        speculator.record(guess, len(guess.tokens), 1.0)
    assert lengths[:2] == [0, 1]
    assert lengths[-1] == 8
