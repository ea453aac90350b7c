"""Answers are the same alone and in company, whatever rows are reused, fail, or guess ahead.

The model is a script whose next token is a digest of everything before it, so that one token too
many, too few, or of somebody else's, changes all that follows.
"""

from __future__ import annotations

import math
import zlib
from array import array
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from attrs import define, evolve, frozen
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from caldrix.engine.engine import Engine, FinishReason, GenerationRequest, running_engine
from caldrix.engine.errors import EngineFailed
from caldrix.engine.rows import common_prefix
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.speculation.proposer import Guess
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.speculation.tuner import Tuner
from caldrix.models.lane import LaneError, Slice
from caldrix.weights.tensor import Float32
from tests.support.scripted import ScriptedExecutor

WORDS = 24
"""Tokens that answers are made of."""
POISON = 24
VOCAB = 25
END = 0
CONTEXT = 1024
TIMEOUT = 60


def digest(prompt: Sequence[int], generated: Sequence[int]) -> int:
    """The next token after all of these."""
    return zlib.crc32(array("q", [*prompt, *generated]).tobytes()) % WORDS


class DigestExecutor(ScriptedExecutor):
    """The scripted lane with logits that also leave a sampler something to choose.

    A step that computes the token `POISON` fails, and so do steps of several rows that ``shaky``
    names, counted from 1.
    """

    def __init__(
        self, *, shaky: Sequence[int] = (), reproducible: bool = True, memory: int | None = None
    ) -> None:
        super().__init__(digest, VOCAB, reproducible=reproducible, memory=memory)
        self._shaky = frozenset(shaky)

    def step(self, slices: Sequence[Slice]) -> Float32:
        poisoned = any(POISON in item.tokens for item in slices)
        shaken = len(slices) > 1 and self.steps + 1 in self._shaky
        self.fails = poisoned or shaken
        logits = super().step(slices)
        best = logits.argmax(axis=1)
        logits[...] = 0.0
        logits[:, POISON] = -1e9
        for row, token in zip(logits, best, strict=True):
            row[[token, (token + 1) % WORDS, (token + 5) % WORDS]] = [3.0, 2.5, 2.0]
        return logits


@frozen
class Ask:
    """A request, and after how many tokens its client leaves (None: it stays)."""

    prompt: tuple[int, ...]
    max_tokens: int = 12
    temperature: float = 0.0
    seed: int | None = 7
    leaves_after: int | None = None

    def request(self) -> GenerationRequest:
        return GenerationRequest(
            self.prompt,
            self.max_tokens,
            SamplingSettings(temperature=self.temperature, seed=self.seed),
            end_tokens=frozenset({END}),
        )


@frozen
class Answer:
    """What a client saw: all of its answer, or the tokens up to an error."""

    tokens: tuple[int, ...]
    reason: FinishReason | None = None
    failed: bool = False


async def perform(engine: Engine, ask: Ask) -> Answer | None:
    """The ask's answer; None if the client left before its end."""
    tokens: list[int] = []
    try:
        async with engine.submit(ask.request()) as generation:
            while ask.leaves_after is None or len(tokens) < ask.leaves_after:
                taken = await generation.take()
                if not taken:
                    return Answer(tuple(tokens), generation.finish_reason)
                tokens += taken
    except EngineFailed:
        return Answer(tuple(tokens), failed=True)
    return None


async def alone(asks: Sequence[Ask]) -> list[Answer | None]:
    """Each answer by an engine that takes one at a time and reuses nothing."""
    async with running_engine(DigestExecutor(reproducible=False), context=CONTEXT) as engine:
        return [await perform(engine, ask) for ask in asks]


def matches(answer: Answer | None, expected: Answer | None, ask: Ask) -> bool:
    """Whether it is the expected answer; how far those came who left is a matter of time."""
    if ask.leaves_after is not None and None in (answer, expected):
        return True
    return answer == expected


async def together(
    executor: ScriptedExecutor, asks: Sequence[Ask], *, rows: int, prefix_rows: int = 0
) -> list[Answer | None]:
    """All of them at once."""
    answers: list[Answer | None] = [None] * len(asks)

    async def one(engine: Engine, number: int) -> None:
        answers[number] = await perform(engine, asks[number])

    async with (
        running_engine(
            executor, context=CONTEXT, rows=rows, prefix_rows=prefix_rows, queue_depth=len(asks)
        ) as engine,
        trio.open_nursery() as nursery,
    ):
        for number in range(len(asks)):
            nursery.start_soon(one, engine, number)
    return answers


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def in_time() -> None:
        with trio.fail_after(TIMEOUT):
            await test()

    with capture_logs():
        trio.run(in_time)


# Few beginnings, so that prompts share prefixes; long ones, so that they are sliced.
beginnings = st.sampled_from([(), (5,) * 40, tuple(range(1, 20)) * 3, (5,) * 40 + (6,) * 600])
asks_strategy = st.lists(
    st.builds(
        Ask,
        prompt=st.builds(
            lambda beginning, rest: (*beginning, *rest),
            beginnings,
            st.lists(st.integers(1, WORDS - 1), min_size=1, max_size=6),
        ),
        max_tokens=st.sampled_from([1, 3, 12, 40]),
        temperature=st.sampled_from([0.0, 0.0, 1.0]),
        leaves_after=st.sampled_from([None, None, None, 0, 2]),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(
    asks=asks_strategy,
    rows=st.integers(1, 4),
    prefix_rows=st.integers(0, 2),
    memory=st.sampled_from([None, None, 16]),
    shaky=st.lists(st.integers(1, 30), max_size=3),
    poisoned=st.sampled_from([None, None, 0]),
)
def test_neither_company_nor_reuse_nor_others_faults_change_an_answer(
    asks: list[Ask],
    rows: int,
    prefix_rows: int,
    memory: int | None,
    shaky: list[int],
    poisoned: int | None,
) -> None:
    if poisoned is not None:
        asks[poisoned] = Ask((*asks[poisoned].prompt, POISON))

    async def test() -> None:
        executor = DigestExecutor(memory=memory, shaky=shaky)
        answers = await together(executor, asks, rows=rows, prefix_rows=prefix_rows)
        expected = await alone(asks)
        assert all(map(matches, answers, expected, asks)), (answers, expected)
        assert (poisoned is not None) == any(answer.failed for answer in answers if answer)

    run(test)


def test_whoever_begins_alike_together_is_computed_once() -> None:
    async def test() -> None:
        beginning = tuple(range(1, 20)) * 20
        asks = [Ask((*beginning, number), max_tokens=4) for number in range(1, 5)]
        executor = DigestExecutor()
        assert await together(executor, asks, rows=4) == await alone(asks)
        assert executor.tokens_computed < len(beginning) + 100

    run(test)


async def answered(engine: Engine, ask: Ask) -> tuple[Answer | None, int]:
    """Its answer, and how many tokens of its prompt were not computed."""
    async with engine.submit(ask.request()) as generation:
        tokens = [token async for token in generation]
    return Answer(tuple(tokens), generation.finish_reason), generation.timeline.cached_tokens


def test_a_second_turn_computes_what_is_new() -> None:
    async def test() -> None:
        executor = DigestExecutor()
        first = Ask(tuple(range(1, 20)) * 40, max_tokens=10)
        async with running_engine(executor, context=CONTEXT) as engine:
            answer, cached = await answered(engine, first)
            assert ([answer], cached) == (await alone([first]), 0)
            assert answer is not None
            before = executor.tokens_computed
            second = Ask((*first.prompt, *answer.tokens, 1, 2, 3), max_tokens=1)
            # The last token of an answer is handed out before it is computed.
            new = 4
            answer, cached = await answered(engine, second)
            assert ([answer], cached) == (await alone([second]), len(second.prompt) - new)
            assert executor.tokens_computed - before == new

    run(test)


@pytest.mark.parametrize("prefix_rows", [0, 1])
def test_a_prefix_row_keeps_what_two_conversations_share_from_a_third(prefix_rows: int) -> None:
    async def test() -> None:
        system = tuple(range(1, 20)) * 3
        asks = [Ask((*system, 1, 3)), Ask((*system, 2, 3)), Ask((9,) * 200), Ask((*system, 5, 5))]
        async with running_engine(
            DigestExecutor(), context=CONTEXT, prefix_rows=prefix_rows
        ) as engine:
            seen = [await answered(engine, ask) for ask in asks]
        assert [answer for answer, _ in seen] == await alone(asks)
        assert [cached for _, cached in seen] == [0, len(system), 0, prefix_rows * len(system)]

    run(test)


def test_a_prefix_that_could_not_be_kept_is_kept_the_next_time() -> None:
    class FailsToCopyAtFirst(DigestExecutor):
        refused = 0

        def copy_row(self, source: int, target: int, length: int) -> None:
            if not self.refused:
                self.refused += 1
                raise LaneError("no copy this time")
            super().copy_row(source, target, length)

    async def test() -> None:
        system = tuple(range(1, 20)) * 3
        other = Ask((9,) * 200)
        asks = [
            *(Ask((*system, 1, 7)), Ask((*system, 2, 7)), other),
            *(Ask((*system, 3, 7)), Ask((*system, 4, 7)), other),
            Ask((*system, 5, 7)),
        ]
        executor = FailsToCopyAtFirst()
        async with running_engine(executor, context=CONTEXT, prefix_rows=1) as engine:
            seen = [await answered(engine, ask) for ask in asks]
        assert executor.refused
        assert [answer for answer, _ in seen] == await alone(asks)
        whole = len(system)
        assert [cached for _, cached in seen] == [0, whole, 0, 0, whole, 0, whole]

    run(test)


def test_a_held_conversation_outlives_one_that_has_little_in_common_with_it() -> None:
    async def test() -> None:
        held = Ask((*range(1, 20), *((3, 4) * 100)))
        other = Ask((*range(1, 20), *((5, 6) * 100)))
        async with running_engine(DigestExecutor(), context=CONTEXT, rows=2) as engine:
            seen = [await answered(engine, ask) for ask in (held, other, held, other)]
        assert [answer for answer, _ in seen] == await alone([held, other, held, other])
        assert [cached for _, cached in seen] == [0, 19, 218, 218]

    run(test)


@given(st.lists(st.integers(0, 3), max_size=8), st.lists(st.integers(0, 3), max_size=8))
def test_a_common_prefix_is_where_two_first_differ(first: list[int], second: list[int]) -> None:
    length = common_prefix(array("q", first), array("q", second))
    assert first[:length] == second[:length]
    assert len(first) == length or len(second) == length or first[length] != second[length]


@define(eq=False)
class Oracle:
    """A proposer that knows the model, and is wrong where ``errs`` says so."""

    errs: Callable[[int], bool]
    kinds: int = 1
    began: int = 0
    asked: int = 0

    def begin(self) -> None:
        self.began += 1

    def read(self, tokens: Sequence[int]) -> None:
        pass

    def propose(self, tokens: Sequence[int], most: int) -> Guess:
        drafted: list[int] = []
        while len(drafted) < most:
            self.asked += 1
            token = digest(tokens, drafted)
            drafted.append((token + 1) % WORDS if self.errs(self.asked) else token)
        return Guess(tuple(drafted))


ERRS: dict[str, Callable[[int], bool]] = {
    "never": lambda asked: False,
    "now and then": lambda asked: asked % 5 == 0,
    "always": lambda asked: True,
}


async def guessed(engine: Engine, ask: Ask) -> tuple[Answer, int, int, int]:
    """Its answer, the draft tokens proposed and accepted, and the seed it used."""
    async with engine.submit(ask.request()) as generation:
        tokens = [token async for token in generation]
    timeline = generation.timeline
    return (
        Answer(tuple(tokens), generation.finish_reason),
        timeline.proposed_tokens,
        timeline.accepted_tokens,
        generation.seed,
    )


@pytest.mark.parametrize("errs", ERRS)
@pytest.mark.parametrize("length", [1, 3, 8])
def test_guesses_change_no_greedy_answer(errs: str, length: int) -> None:
    async def test() -> None:
        # Some end by their end token, some by their cap, inside a draft and at its end.
        asks = [Ask((1 + number,) * 3, 1 + number) for number in range(16)]
        executor, oracle = DigestExecutor(), Oracle(ERRS[errs])
        speculator = Speculator(oracle, Tuner(oracle.kinds, fixed=length))
        times: list[float] = []
        async with running_engine(
            executor, context=CONTEXT, speculator=speculator, observe_token=times.append
        ) as engine:
            seen = [await guessed(engine, ask) for ask in asks]
        answers = await alone(asks)
        assert {answer.reason for answer in answers if answer} == set(FinishReason)
        assert [answer for answer, _, _, _ in seen] == answers
        assert oracle.began == len(asks)
        # Of each token that came out, but for the first of each answer.
        assert len(times) == sum(max(0, len(answer.tokens) - 1) for answer, *_ in seen)
        for ask, (answer, proposed, accepted, _) in zip(asks, seen, strict=True):
            given = len(answer.tokens)
            # The first token comes with the prompt, and after the last one there is none to guess.
            assert (proposed > 0) == (given > 0 and ask.max_tokens > 2)
            assert accepted <= min(proposed, max(0, given - 1))
            if errs == "always":
                assert accepted == 0
            if errs == "never" and answer.reason is FinishReason.LENGTH:
                assert accepted == proposed
        if errs == "never":
            least = sum(math.ceil(len(answer.tokens) / (1 + length)) for answer, *_ in seen)
            assert executor.steps <= least + 2 * len(asks)

    run(test)


def test_sampled_requests_are_guessed_ahead_and_keep_their_draws() -> None:
    async def test() -> None:
        oracle = Oracle(ERRS["now and then"])
        speculator = Speculator(oracle, Tuner(oracle.kinds, fixed=4))
        asks = [Ask((number, 5), 20, temperature=0.9, seed=None) for number in range(1, WORDS)]
        async with running_engine(
            DigestExecutor(), context=CONTEXT, speculator=speculator
        ) as engine:
            seen = [await guessed(engine, ask) for ask in asks]
            assert sum(accepted for _, _, accepted, _ in seen) > 50
            # With the seed they used, which they now carry, they run without guesses.
            again = [evolve(ask, seed=seed) for ask, (*_, seed) in zip(asks, seen, strict=True)]
            plain = [await guessed(engine, ask) for ask in again]
        assert [answer for answer, *_ in seen] == [answer for answer, *_ in plain]
        assert all(proposed == 0 for _, proposed, _, _ in plain)

    run(test)
