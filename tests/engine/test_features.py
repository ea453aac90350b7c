"""Prompts with features in them: each token gets its own, and no row tells another's.

The model is the script of `test_company`, to which a token with features is a digest of them: a
feature too many, too few, out of place or of somebody else's changes all that follows.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import trio
from attrs import evolve, field, frozen
from hypothesis import given, settings
from hypothesis import strategies as st

from caldrix.engine.engine import Engine, GenerationRequest, running_engine
from caldrix.engine.sampling import SamplingSettings
from caldrix.engine.speculation.speculator import Speculator
from caldrix.engine.speculation.tuner import Tuner
from caldrix.models.lane import Features, Slice
from caldrix.weights.tensor import Float32
from tests.engine.test_company import CONTEXT, END, ERRS, DigestExecutor, Oracle, digest, run

WIDTH = 3
IMAGE = 9
"""The token that most features stand in for."""
_SEEN = 1000
"""Digests of features are above all tokens."""


def seen(features: Float32) -> int:
    """What a token with these features is to the model."""
    return _SEEN + zlib.crc32(features.tobytes()) % 2**20


class FeatureDigestExecutor(DigestExecutor):
    """To which a token that has features is a digest of them."""

    def __init__(self, *, shaky: Sequence[int] = (), memory: int | None = None) -> None:
        super().__init__(shaky=shaky, memory=memory)
        self.given = 0
        """Features that came, also those of steps that failed."""
        self.company: list[int] = []
        """How many sequences each step was for."""

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.company.append(len(slices))
        return super().step([self._look(item) for item in slices])

    def _look(self, item: Slice) -> Slice:
        if item.features is None:
            return item
        self.given += len(item.features.places)
        tokens = item.tokens.copy()
        tokens[item.features.places] = [seen(row) for row in item.features.rows]
        return evolve(item, tokens=tokens, features=None)


@frozen
class Ask:
    """A prompt, and the features of some of its tokens, each told by a number."""

    prompt: tuple[int, ...]
    shown: Mapping[int, int] = field(factory=dict)
    max_tokens: int = 8

    def request(self) -> GenerationRequest:
        features = None
        if self.shown:
            places = np.array(sorted(self.shown), np.int64)
            features = Features(places, np.stack([self._row(place) for place in places]))
        return GenerationRequest(
            self.prompt,
            self.max_tokens,
            SamplingSettings(temperature=0.0),
            end_tokens=frozenset({END}),
            features=features,
        )

    def _row(self, place: int) -> Float32:
        return np.full(WIDTH, self.shown[place], np.float32)

    def expected(self) -> list[int]:
        """The tokens that the script says after it."""
        prompt = [
            seen(self._row(place)) if place in self.shown else token
            for place, token in enumerate(self.prompt)
        ]
        said: list[int] = []
        while len(said) < self.max_tokens and (token := digest(prompt, said)) != END:
            said.append(token)
        return said


def with_image(*rest: int, number: int = 1, length: int = 60) -> Ask:
    """A long beginning that is all one picture, and something after it."""
    return Ask((IMAGE,) * length + rest, dict.fromkeys(range(length), number))


def words(ask: Ask) -> Ask:
    """The very same tokens without features."""
    return evolve(ask, shown={})


async def answered(engine: Engine, ask: Ask) -> int:
    """Checks its answer; returns how many tokens of its prompt were not computed."""
    async with engine.submit(ask.request()) as generation:
        assert [token async for token in generation] == ask.expected()
    return generation.timeline.cached_tokens


async def all_answered(engine: Engine, asks: Sequence[Ask]) -> dict[int, int]:
    """Checks the answers of all of them at once; returns what `answered` does, by their places."""
    cached: dict[int, int] = {}

    async def one(number: int) -> None:
        cached[number] = await answered(engine, asks[number])

    async with trio.open_nursery() as nursery:
        for number in range(len(asks)):
            nursery.start_soon(one, number)
    return cached


@st.composite
def asks_of_all_kinds(draw: st.DrawFn) -> Ask:
    beginning = draw(st.sampled_from([(), (IMAGE,) * 40, (5,) * 40 + (IMAGE,) * 300]))
    rest = draw(st.lists(st.integers(1, 23), min_size=1, max_size=6))
    prompt = (*beginning, *rest)
    images = [place for place, token in enumerate(beginning) if token == IMAGE]
    number = draw(st.sampled_from([None, 1, 2]))
    shown = {} if number is None else dict.fromkeys(images, number)
    # Anywhere else, the last token included.
    shown |= draw(st.dictionaries(st.integers(0, len(prompt) - 1), st.integers(3, 5), max_size=2))
    return Ask(prompt, shown, draw(st.sampled_from([1, 3, 12])))


@settings(max_examples=60, deadline=None)
@given(
    asks=st.lists(asks_of_all_kinds(), min_size=1, max_size=10),
    rows=st.integers(1, 4),
    prefix_rows=st.integers(0, 2),
    memory=st.sampled_from([None, None, 16]),
    shaky=st.lists(st.integers(1, 30), max_size=3),
)
def test_features_reach_their_tokens_in_any_company(
    asks: list[Ask], rows: int, prefix_rows: int, memory: int | None, shaky: list[int]
) -> None:
    async def test() -> None:
        async with running_engine(
            FeatureDigestExecutor(memory=memory, shaky=shaky),
            context=CONTEXT,
            rows=rows,
            prefix_rows=prefix_rows,
            queue_depth=len(asks),
        ) as engine:
            cached = await all_answered(engine, asks)
        assert not any(cached[number] for number, ask in enumerate(asks) if ask.shown)

    run(test)


def test_a_prompt_with_features_goes_on_from_no_held_row() -> None:
    async def test() -> None:
        executor, asked = FeatureDigestExecutor(), with_image(1, 2, 3)
        async with running_engine(executor, context=CONTEXT, rows=2, prefix_rows=1) as engine:
            for ask in (words(asked), asked, asked, with_image(1, 2, 3, 4)):
                assert await answered(engine, ask) == 0
        assert executor.given == 3 * 60
        assert not executor.copies

    run(test)


def test_no_prompt_goes_on_from_one_with_features() -> None:
    async def test() -> None:
        executor, asked = FeatureDigestExecutor(), with_image(1, 2, 3)
        async with running_engine(executor, context=CONTEXT, rows=1, prefix_rows=1) as engine:
            assert await answered(engine, asked) == 0
            # A further turn, a conversation that begins alike, and the tokens themselves.
            further = evolve(asked, prompt=(*asked.prompt, *asked.expected(), 7))
            for ask in (further, with_image(4, 5), words(asked)):
                assert await answered(engine, ask) == 0
            # Words go on from words.
            assert await answered(engine, words(further)) >= len(asked.prompt)
        assert not [copy for copy in executor.copies if copy[0] != copy[1]]

    run(test)


def test_a_held_conversation_outlives_a_prompt_with_features_elsewhere() -> None:
    async def test() -> None:
        held = Ask(tuple(range(1, 20)) * 4)
        async with running_engine(FeatureDigestExecutor(), context=CONTEXT, rows=2) as engine:
            assert await answered(engine, held) == 0
            for number in range(3):
                assert await answered(engine, with_image(1, number=number)) == 0
            assert await answered(engine, held) == len(held.prompt) - 1

    run(test)


@pytest.mark.parametrize("first_has_features", [False, True])
def test_nobody_waits_for_a_beginning_that_is_not_to_be_had(first_has_features: bool) -> None:
    async def test() -> None:
        asked = with_image(1, 2, 3, length=400)
        asks = [asked, words(asked)] if first_has_features else [words(asked), asked]
        executor = FeatureDigestExecutor()
        async with running_engine(executor, context=CONTEXT, rows=2) as engine:
            executor.gate.clear()
            async with trio.open_nursery() as nursery:
                for count, ask in enumerate(asks, start=1):
                    nursery.start_soon(answered, engine, ask)
                    while engine.running + engine.waiting < count:  # noqa: ASYNC110  # no event
                        await trio.sleep(0.001)
                executor.gate.set()
        assert not executor.copies
        # Long before either has all that both begin with, which takes seven steps.
        assert 2 in executor.company[:3]

    run(test)


def test_a_step_that_fails_in_company_is_computed_again_with_its_features() -> None:
    async def test() -> None:
        asks = [with_image(1, number=1), with_image(1, number=2), Ask((IMAGE,) * 60 + (1,))]
        executor = FeatureDigestExecutor(shaky=range(1, 6))
        async with running_engine(executor, context=CONTEXT, rows=3) as engine:
            await all_answered(engine, asks)
        assert executor.given > 2 * 60

    run(test)


def test_nothing_is_guessed_after_a_prompt_with_features() -> None:
    async def test() -> None:
        oracle = Oracle(ERRS["never"])
        speculator = Speculator(oracle, Tuner(oracle.kinds, fixed=3))
        async with running_engine(
            FeatureDigestExecutor(), context=CONTEXT, speculator=speculator
        ) as engine:
            asked = with_image(1, 2, 3)
            async with engine.submit(asked.request()) as generation:
                assert [token async for token in generation] == asked.expected()
            assert (oracle.began, generation.timeline.proposed_tokens) == (0, 0)
            assert len(asked.expected()) > 2
            async with engine.submit(words(asked).request()) as generation:
                assert [token async for token in generation] == words(asked).expected()
            assert generation.timeline.proposed_tokens > 0

    run(test)
