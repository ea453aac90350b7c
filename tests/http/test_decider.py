"""POST /v1/systemone by a decider, over a lane whose logits are a digest of the prompt."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio

from caldrix.decisions.decider import Decider
from caldrix.decisions.decider_config import DeciderConfig
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.models.lane import LaneError, Slice, Snapshot
from caldrix.weights.tensor import Float32
from tests.support.readable import TOKENIZER, ReadableExecutor, logits_after
from tests.support.serving import MODEL, Running, serving, trio_test

PATH = "/v1/systemone"
CONTEXT = 1024
STATE = "a parcel that came late, and wet"
NOUL: dict[str, Any] = {"type": "noul", "instructions": "Late?"}
CHOICE: dict[str, Any] = {
    "type": "choice",
    "instructions": "Which?",
    "criteria": {"a": None, "b": "the other"},
}
SCORE: dict[str, Any] = {"type": "score", "instructions": "How wet?", "criteria": ["a bit", "very"]}
QUESTIONS = {"n": NOUL, "s": SCORE, "c": CHOICE}
TYPED: Mapping[str, Question] = {
    "n": Noul("Late?"),
    "s": Score("How wet?", ("a bit", "very")),
    "c": Choice("Which?", {"a": None, "b": "the other"}),
}


def decider(**settings: Any) -> Decider:
    config = DeciderConfig(**{"temperature": 2.0, **settings})
    return Decider.of(config, TOKENIZER, TOKENIZER.vocab_size)


class Forgetful(ReadableExecutor):
    """Goes on from a row's end alone, as models with states do."""

    def __init__(self, vocab_size: int = TOKENIZER.vocab_size) -> None:
        super().__init__(vocab_size, memory=0)


@asynccontextmanager
async def deciding(
    asked: Decider | None = None, executor: ReadableExecutor | None = None, **settings: Any
) -> AsyncIterator[Running]:
    settings = {"context": CONTEXT, "snapshots": 1, **settings}
    async with serving(
        executor or Forgetful(),
        decider=asked or decider(),
        template=None,
        tokenizer=TOKENIZER,
        **settings,
    ) as server:
        yield server


async def ask(server: Running, questions: object, state: object = STATE) -> httpx2.Response:
    body = {"model": MODEL, "state": state, "questions": questions}
    return await server.client.post(PATH, json=body)


def told(response: httpx2.Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


def read(asked: Decider, question: Question) -> Any:
    """The answer to a question, each of whose prompts is read whole."""
    writer = asked.about(STATE)
    logits = [
        logits_after((*writer.shared, *prompt.tokens), TOKENIZER.vocab_size)[list(prompt.label_ids)]
        for prompt in writer.write(question)
    ]
    return asked.answer(question, logits)


def counts(asked: Decider) -> tuple[int, list[int]]:
    """The tokens of the state, and of each prompt after it."""
    writer = asked.about(STATE)
    prompts = [prompt for question in TYPED.values() for prompt in writer.write(question)]
    return len(writer.shared), [len(prompt.tokens) for prompt in prompts]


@pytest.mark.parametrize("isolated", [False, True])
def test_answers_are_read_and_counted_as_the_decider_says(isolated: bool) -> None:
    @trio_test
    async def run() -> None:
        asked, executor = decider(isolated_levels=isolated), Forgetful()
        state, pieces = counts(asked)
        assert len(pieces) == (4 if isolated else 3)
        async with deciding(asked, executor) as server:
            answered = (await ask(server, QUESTIONS)).json()
            listed = (await server.client.get("/debug/requests")).json()["requests"]
            metrics = (await server.client.get("/metrics")).text
        found = {name: read(asked, question) for name, question in TYPED.items()}
        n, s, c = (answered["answers"][name] for name in QUESTIONS)
        assert n == {"type": "noul", "noul": found["n"].noul}
        assert (s["score"], s["confidence"]) == (found["s"].score, found["s"].confidence)
        assert tuple(s["probabilities"].values()) == found["s"].probabilities
        assert (c["choice"], tuple(c["probabilities"].values())) == (
            found["c"].choice,
            found["c"].probabilities,
        )
        # What was read is what was computed: the state once, and each question.
        total = state + sum(pieces)
        assert answered["usage"] == {"input_tokens": total, "output_tokens": 0}
        assert executor.tokens_computed == total
        assert [(each["prompt_tokens"], each["cached_tokens"]) for each in listed] == [(total, 0)]
        for name in ("prompt_tokens_total", "prefix_cache_queries_total"):
            assert f"caldrix_{name} {total}.0\n" in metrics
        assert "caldrix_prefix_cache_hits_total 0.0\n" in metrics

    run()


@trio_test
async def test_the_state_counts_with_each_prompt_where_it_is_not_kept() -> None:
    state, pieces = counts(decider())
    async with deciding(snapshots=0) as server:
        usage = (await ask(server, QUESTIONS)).json()["usage"]
    assert usage["input_tokens"] == sum(state + piece for piece in pieces)


@trio_test
async def test_one_prompt_is_read_whole() -> None:
    executor = Forgetful()
    state, pieces = counts(decider())
    async with deciding(executor=executor) as server:
        for _ in range(2):
            usage = (await ask(server, {"n": NOUL})).json()["usage"]
            assert usage["input_tokens"] == state + pieces[0]
    assert executor.snapshots_taken == executor.restored == 0


class Watched(Forgetful):
    """Keeps the tokens of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[int]] = []

    def step(self, slices: Sequence[Slice]) -> Float32:
        self.seen.append(slices[0].tokens.tolist())
        return super().step(slices)


@trio_test
async def test_other_requests_run_between_the_prompts_of_a_question() -> None:
    asked, executor = decider(isolated_levels=True), Watched()
    executor.gate.clear()
    first, second = (list(prompt.tokens) for prompt in asked.write(TYPED["s"]))
    async with deciding(asked, executor) as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask, server, {"s": SCORE})
        await server.wait_busy(running=1)
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 1}
        nursery.start_soon(lambda: server.client.post("/v1/completions", json=body))
        await server.wait_busy(running=1, waiting=1)
        executor.gate.set()
        # The state that both levels begin with goes with the response, within a moment.
        with trio.fail_after(5):
            while executor.seen[-1:] != [second] or executor.snapshots:  # noqa: ASYNC110  # no event
                await trio.sleep(0.002)
    # What came while the first level was read had its turn before the second.
    assert executor.seen[-3:] == [first, TOKENIZER.encode("hi"), second]
    assert executor.restored == 1


class CannotRestore(Forgetful):
    def restore(self, snapshot: Snapshot, row: int) -> None:
        raise LaneError("it cannot be read")


@trio_test
async def test_what_had_to_be_read_again_counts_again() -> None:
    state, pieces = counts(decider())
    executor = CannotRestore()
    async with deciding(executor=executor) as server:
        usage = (await ask(server, QUESTIONS)).json()["usage"]
    assert usage["input_tokens"] == executor.tokens_computed == 3 * state + sum(pieces)


@trio_test
async def test_a_state_with_a_token_that_the_model_does_not_have() -> None:
    executor = Forgetful(TOKENIZER.vocab_size - 1)
    async with deciding(executor=executor) as server:
        response = await ask(server, {"n": NOUL}, state="a No b")
    assert told(response)[:2] == (400, "state")
    assert "token" in told(response)[2]
    assert executor.steps == 0


PREFIX = "this model is a decider: "
CRITERIA, INSTRUCTIONS = "questions.q.criteria", "questions.q.instructions"
LIMITS: list[tuple[Any, str, str]] = [
    ({**CHOICE, "criteria": {"a": None}}, CRITERIA, "a choice must hold 2 to 26 options, got 1"),
    (
        {**CHOICE, "criteria": {str(n): None for n in range(27)}},
        CRITERIA,
        "a choice must hold 2 to 26 options, got 27",
    ),
    ({**SCORE, "criteria": ["a"]}, CRITERIA, "a score must hold 2 to 10 levels, got 1"),
    ({**SCORE, "criteria": ["a"] * 11}, CRITERIA, "a score must hold 2 to 10 levels, got 11"),
    (
        {**CHOICE, "instructions": ""},
        INSTRUCTIONS,
        'a choice needs instructions that are neither null nor ""',
    ),
    (
        {**SCORE, "instructions": None},
        INSTRUCTIONS,
        'a score needs instructions that are neither null nor ""',
    ),
    (
        {"type": "noul", "criteria": {"true": None, "false": ""}},
        CRITERIA,
        "a noul without instructions needs a description of true or of false",
    ),
]


@trio_test
async def test_refusals_name_their_place_and_nothing_is_run() -> None:
    executor = Forgetful()
    async with deciding(executor=executor) as server:
        for question, param, message in LIMITS:
            response = await ask(server, {"fine": NOUL, "q": question})
            assert told(response) == (400, param, PREFIX + message), question
        for count in (0, 65):
            response = await ask(server, {str(n): NOUL for n in range(count)})
            message = f"{PREFIX}a request must hold 1 to 64 questions, got {count}"
            assert told(response) == (400, "questions", message)
        long = await ask(server, {"q": {**NOUL, "instructions": "x" * CONTEXT}})
        assert told(long)[:2] == (400, "questions.q")
        assert "takes prompts of at most 1023" in told(long)[2]
        assert executor.steps == 0


@trio_test
async def test_the_state_cap() -> None:
    asked = decider(max_state_tokens=200)
    # "Context:" and a line's end are 9 tokens of it.
    async with deciding(asked) as server:
        assert (await ask(server, {"n": NOUL}, state="x" * 191)).status_code == 200
        assert told(await ask(server, {"n": NOUL}, state="x" * 192)) == (
            400,
            "state",
            "the state is 201 tokens, and this model takes 200 at most; send a shorter state",
        )
    most = decider(max_state_tokens=2)
    async with deciding(most) as server:
        response = await ask(server, {"n": NOUL}, state="x" * (2 * 2**16))
        assert told(response) == (
            400,
            "state",
            "the state is at least 3 tokens, and this model takes 2 at most; send a shorter state",
        )


@trio_test
async def test_all_prompts_together_have_a_limit() -> None:
    """Isolated levels make more than 64 prompts of a request."""
    asked, executor = decider(isolated_levels=True), Forgetful()
    long = {**SCORE, "instructions": "x" * (CONTEXT - 200), "criteria": ["a"] * 10}
    async with deciding(asked, executor) as server:
        response = await ask(server, {str(n): long for n in range(8)})
        assert told(response) == (
            400,
            "questions",
            "the prompts of all questions are at least 67200 tokens, and 64 times the context of "
            "1024 are 65536; ask fewer at a time",
        )
        assert executor.steps == 0
        assert (await ask(server, {str(n): long for n in range(5)})).status_code == 200
