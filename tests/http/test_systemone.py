"""POST /v1/systemone over a lane whose logits are a digest of the prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from caldrix.decisions.answers import probabilities
from caldrix.decisions.questions import Noul, Question
from caldrix.decisions.reading import Prompt
from caldrix.decisions.zero_shot import ZeroShot
from caldrix.engine.engine import GenerationRequest, Reading, ReadingRequest
from caldrix.http.watch import LEFT
from caldrix.models.lane import Slice
from caldrix.weights.tensor import Float32
from tests.support import miniature
from tests.support.readable import TOKENIZER, ReadableExecutor, logits_after
from tests.support.serving import MODEL, Running, serving, trio_test
from tests.support.wire import connected, post, reset

PATH = "/v1/systemone"
CONTEXT = 1024

NOUL: dict[str, Any] = {"type": "noul", "instructions": "Late?"}
CHOICE: dict[str, Any] = {"type": "choice", "criteria": {"z": None, "a b": {"n": 1}, "10": "x"}}
SCORE: dict[str, Any] = {"type": "score", "criteria": ["fine", ["so"], {"a": 1}]}


@asynccontextmanager
async def asking(
    executor: ReadableExecutor | None = None, **settings: Any
) -> AsyncIterator[Running]:
    settings = {"context": CONTEXT, "tokenizer": TOKENIZER, **settings}
    async with serving(executor or ReadableExecutor(), **settings) as server:
        yield server


def request(questions: object, **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "state": "s", "questions": questions, **fields}


async def ask(server: Running, questions: object, **fields: Any) -> httpx2.Response:
    return await server.client.post(PATH, json=request(questions, **fields))


async def ask_text(server: Running, text: str) -> httpx2.Response:
    """The answer to a request that is sent as it is spelled, after its model."""
    headers = {"content-type": "application/json"}
    content = f'{{"model": "{MODEL}", {text}}}'
    return await server.client.post(PATH, content=content, headers=headers)


def told(response: httpx2.Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    assert list(error) == ["code", "message", "param", "type"]
    assert error["code"] is None
    return response.status_code, error["param"], error["message"]


async def records(server: Running, count: int = 1) -> list[dict[str, Any]]:
    """The records, once there are so many."""
    listed: list[dict[str, Any]] = []
    with trio.fail_after(5):
        while len(listed) < count:
            await trio.sleep(0.002)
            listed = (await server.client.get("/debug/requests")).json()["requests"]
    return listed


async def metrics(server: Running) -> dict[str, float]:
    page = (await server.client.get("/metrics")).text
    return {
        sample.name.removeprefix("caldrix_") + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if "le" not in sample.labels
    }


@trio_test
async def test_a_reading_is_that_of_the_prompt() -> None:
    async with asking() as server:
        answer = (await ask(server, {"q": NOUL})).json()
        service = server.service
        reading = ZeroShot.of(service.template, TOKENIZER, service.vocab_size)
    prompt = reading.prompt("s", Noul("Late?"))
    logits = logits_after(prompt.tokens, TOKENIZER.vocab_size)[list(prompt.label_ids)]
    assert prompt.label_ids == tuple(TOKENIZER.encode("YesNo"))
    assert answer == {
        "model": MODEL,
        "answers": {"q": {"type": "noul", "noul": probabilities(logits)[0]}},
        "usage": {"input_tokens": len(prompt.tokens), "output_tokens": 0},
    }


@trio_test
async def test_an_answer_to_the_byte() -> None:
    nines = "9" * 5000
    text, numbers = r'"dép\u00f4t \"9\" \ud83d\ude42\n"', '{"z": [1.50, 1e-05, -0, -0.0], "a": {}}'
    criteria = f"[{text}, {numbers}, [{nines}, null]]"
    question = f'"u": {{"type": "score", "criteria": {criteria}}}, "t": {json.dumps(CHOICE)}'
    async with asking(context=16384) as server:
        answer = await ask_text(server, f'"state": [2.0], "questions": {{{question}}}')
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-request-id"] == "systemone-1"
    body = json.loads(answer.text, parse_int=str)
    score, choice = body["answers"].values()
    p, q = score["probabilities"], choice["probabilities"]
    best = max(q, key=q.__getitem__)
    legend = r'"0":"dépôt \"9\" 🙂\n","1":{"z":[1.50,1e-05,-0,-0.0],"a":{}}'
    assert answer.text == (
        f'{{"model":"{MODEL}","answers":{{"u":{{"type":"score","score":{p["1"] + 2 * p["2"]!r},'
        f'"legend":{{{legend},"2":[{nines},null]}},'
        f'"probabilities":{{"0":{p["0"]!r},"1":{p["1"]!r},"2":{p["2"]!r}}},'
        f'"confidence":{score["confidence"]!r}}},'
        f'"t":{{"type":"choice","choice":"{best}",'
        f'"probabilities":{{"z":{q["z"]!r},"a b":{q["a b"]!r},"10":{q["10"]!r}}},'
        f'"confidence":{choice["confidence"]!r}}}}},'
        f'"usage":{{"input_tokens":{body["usage"]["input_tokens"]},"output_tokens":0}}}}'
    )


@trio_test
async def test_a_question_is_answered_as_if_it_were_alone() -> None:
    questions = {"late": NOUL, "team": CHOICE, "10": SCORE, "bad": {"type": "noul"}}
    state = {"order": 7, "text": "The parcel came two days late. " * 8}
    async with asking() as server:
        together = (await ask(server, questions, state=state)).json()
        (record,) = await records(server)
    assert list(together["answers"]) == list(questions)
    assert record["cached_tokens"] > 3 * len(state["text"])  # type: ignore[arg-type]  # a string
    async with asking(ReadableExecutor(reproducible=False)) as server:
        alone = [
            (await ask(server, {name: question}, state=state)).json()
            for name, question in questions.items()
        ]
    for one in alone:
        assert one["answers"].items() <= together["answers"].items()
    counts = [one["usage"]["input_tokens"] for one in alone]
    assert together["usage"] == {"input_tokens": sum(counts), "output_tokens": 0}


NO_FIELD = "is no field of a request to /v1/systemone, which takes model, state and questions"
NO_FIELD_OF_Q = "is no field of a question, which takes type, instructions and criteria"
NO_SIDE = "is no field of a noul's criteria, which takes true and false"
OPTIONS = "an object of options and their descriptions"
SIXTY_FIVE = "must hold 1 to 64 questions, got 65"
TWENTY_SEVEN = dict.fromkeys(map(str, range(27)))
TEXT = "a string, an object or an array"
Q, CRITERIA = "questions.q", "questions.q.criteria"

# What of a request, the field it is refused for, and the words
FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"images": None}, "images", NO_FIELD),
    ({"assets": {}}, "assets", NO_FIELD),
    ({"temperature": 0}, "temperature", NO_FIELD),
    ({"model": 7}, "model", "must be a string, got 7"),
    ({"model": "other"}, "model", f'this server serves "{MODEL}", not "other"'),
    ({"state": None}, "state", f"must be {TEXT}, got null"),
    ({"state": False}, "state", f"must be {TEXT}, got false"),
    ({"questions": [NOUL]}, "questions", "must be an object of questions, got an array"),
    ({"questions": {}}, "questions", "must hold 1 to 64 questions, got 0"),
    ({"questions": dict.fromkeys(map(str, range(65)), NOUL)}, "questions", SIXTY_FIVE),
]

# The same of a question
QUESTIONS: list[tuple[object, str, str]] = [
    ("late?", Q, 'must be a question, an object, got "late?"'),
    ({}, f"{Q}.type", "is required: choice, score or noul"),
    ({"type": None}, f"{Q}.type", "must be choice, score or noul, got null"),
    ({"type": ["noul"]}, f"{Q}.type", "must be choice, score or noul, got an array"),
    ({"type": "Noul"}, f"{Q}.type", 'must be choice, score or noul, got "Noul"'),
    ({"type": "box", "where": 1}, f"{Q}.type", "box questions are not supported by this server"),
    ({**NOUL, "images": []}, f"{Q}.images", NO_FIELD_OF_Q),
    ({**NOUL, "instructions": 7}, f"{Q}.instructions", f"must be {TEXT}, got 7"),
    ({"type": "choice"}, CRITERIA, f"is required: {OPTIONS}"),
    ({**CHOICE, "criteria": ["a"]}, CRITERIA, f"must be {OPTIONS}, got an array"),
    ({**CHOICE, "criteria": {}}, CRITERIA, "must hold 1 to 26 options, got 0"),
    ({**CHOICE, "criteria": TWENTY_SEVEN}, CRITERIA, "must hold 1 to 26 options, got 27"),
    ({**CHOICE, "criteria": {"a.b": 1.5}}, f"{CRITERIA}.a.b", f"must be {TEXT}, got 1.5"),
    ({"type": "score"}, CRITERIA, "is required: an array of levels"),
    ({**SCORE, "criteria": {"0": "a"}}, CRITERIA, "must be an array of levels, got an object"),
    ({**SCORE, "criteria": []}, CRITERIA, "must hold 1 to 26 levels, got 0"),
    ({**SCORE, "criteria": ["a"] * 27}, CRITERIA, "must hold 1 to 26 levels, got 27"),
    ({**SCORE, "criteria": ["a", None]}, f"{CRITERIA}[1]", f"must be {TEXT}, got null"),
    ({**NOUL, "criteria": "late"}, CRITERIA, 'must be an object with true and false, got "late"'),
    ({**NOUL, "criteria": {"True": "a"}}, f"{CRITERIA}.True", NO_SIDE),
    ({**NOUL, "criteria": {"false": 0}}, f"{CRITERIA}.false", f"must be {TEXT}, got 0"),
]

# The same of a request as it is spelled, after its model
TEXTS = [
    ('"questions": {"q": {"type": "noul"}}', "state", "is required"),
    ('"state": "s"', "questions", "is required"),
    (
        '"state": {"a": [0, -1e400]}, "questions": {"q": {"type": "noul"}}',
        "state.a[1]",
        "is a number that no 64-bit float can hold, got -1e400",
    ),
    (
        '"state": "s", "questions": {"q": {"type": "score", "criteria": [{"b": 1e999}]}}',
        f"{CRITERIA}[0].b",
        "is a number that no 64-bit float can hold, got 1e999",
    ),
    (
        '"state": {"a": 1, "a": 2}, "questions": {"q": {"type": "noul"}}',
        "state.a",
        'the key "a" comes twice',
    ),
]


@trio_test
async def test_refusals_name_their_place_and_nothing_is_run() -> None:
    executor = ReadableExecutor()
    async with asking(executor) as server:
        for fields, param, message in FIELDS:
            response = await ask(server, **{"questions": {"q": NOUL}, **fields})
            assert told(response) == (400, param, message), fields
        for question, param, message in QUESTIONS:
            response = await ask(server, {"fine": NOUL, "q": question})
            assert told(response) == (400, param, message), question
        for text, param, message in TEXTS:
            assert told(await ask_text(server, text)) == (400, param, message), text
        long = await ask(server, {"fine": NOUL, "q": {**NOUL, "instructions": "x" * CONTEXT}})
        status, place, said = told(long)
        assert (status, place) == (400, Q)
        assert said.endswith("the context of 1024 tokens takes prompts of at most 1023")
        assert executor.steps == 0
        # Not one of them took a number.
        assert (await ask(server, {"q": NOUL})).headers["x-request-id"] == "systemone-1"


@trio_test
async def test_what_the_template_refuses_names_the_question() -> None:
    template = "{{ raise_exception('no') if 'bad' in messages[0].content else 'x' }}"
    async with asking(template=template) as server:
        response = await ask(server, {"a": NOUL, "b": {**NOUL, "instructions": "bad"}})
        assert told(response)[:2] == (400, "questions.b")
    async with asking(template="{{ '' }}") as server:
        response = await ask(server, {"a": NOUL})
        assert told(response) == (400, "questions.a", "the question is an empty prompt")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 2}, "/v1/systemone needs --max-batch 1"),
        ({"rows": 2, "template": None}, "/v1/systemone needs --max-batch 1"),
        ({"template": None}, "the model has no chat template; /v1/systemone needs one"),
        (
            {"tokenizer": miniature.tokenizer("No")},
            "/v1/systemone needs one token for each label, and this model's tokenizer makes "
            "3 tokens of the label 'Yes'; serve another model",
        ),
    ],
)
def test_servers_that_cannot_decide(settings: dict[str, Any], message: str) -> None:
    @trio_test
    async def run() -> None:
        async with asking(**settings) as server:
            assert told(await ask(server, {"q": NOUL})) == (400, None, message)

    run()


@trio_test
async def test_a_record_and_the_metrics() -> None:
    async with asking(replay_ring=4) as server:
        answer = await ask(server, {"a": NOUL, "b": CHOICE})
        (record,) = await records(server)
        counted = await metrics(server)
        replay = (await server.client.get("/debug/replay")).json()
    tokens = answer.json()["usage"]["input_tokens"]
    assert record.pop("received") > 0
    assert record.pop("queue_ms") >= 0
    assert record.pop("prefill_ms") > 0
    cached = record.pop("cached_tokens")
    assert 0 < cached < tokens
    assert record == {
        "id": "systemone-1",
        "route": PATH,
        "status": 200,
        "decode_ms": 0.0,
        "prompt_tokens": tokens,
        "completion_tokens": 0,
        "finish_reason": "stop",
        "sampling": None,
        "speculative": None,
        "lane": "scripted",
    }
    assert counted["prompt_tokens_total"] == counted["prefix_cache_queries_total"] == tokens
    assert counted["prefix_cache_hits_total"] == cached
    assert counted["generation_tokens_total"] == 0
    assert counted["request_success_totalstop"] == 1
    assert counted["e2e_request_latency_seconds_count"] == 1
    assert counted["request_queue_time_seconds_count"] == 1
    # No token came, so none was the first.
    assert counted["time_to_first_token_seconds_count"] == 0
    assert counted["time_per_output_token_seconds_count"] == 0
    assert replay == {"requests": []}


@trio_test
async def test_other_requests_run_between_the_questions() -> None:
    executor = ReadableExecutor()
    executor.gate.clear()
    async with asking(executor) as server, trio.open_nursery() as nursery:
        nursery.start_soon(ask, server, {"a": NOUL, "b": CHOICE})
        await server.wait_busy(running=1)
        body = {"model": MODEL, "prompt": "hi", "max_tokens": 2}
        nursery.start_soon(lambda: server.client.post("/v1/completions", json=body))
        await server.wait_busy(running=1, waiting=1)
        executor.gate.set()
        found = await records(server, 2)
    # Newest first: what came while the first question ran had its turn before the second.
    assert [record["route"] for record in found] == [PATH, "/v1/completions"]


@trio_test
async def test_a_full_queue_refuses_the_whole_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(queue_depth=0) as server:
        engine, read, taken = server.service.engine, server.service.engine.read, []

        @asynccontextmanager
        async def outrun(wanted: ReadingRequest) -> AsyncIterator[Reading]:
            """Somebody else takes the only place before the second question can."""
            taken.append(wanted)
            if len(taken) == 1:
                async with read(wanted) as reading:
                    yield reading
                return
            async with engine.submit(GenerationRequest((1,))), read(wanted) as reading:
                yield reading

        monkeypatch.setattr(engine, "read", outrun)
        response = await ask(server, {"a": NOUL, "b": NOUL, "c": NOUL})
        assert told(response) == (429, None, "the request queue is full")
        assert len(taken) == 2
        await server.wait_rows_free()
        (record,) = await records(server)
    # Its first question was read, and that work is told of.
    assert (record["status"], record["finish_reason"], record["lane"]) == (429, None, "scripted")
    assert record["prompt_tokens"] == len(taken[0].prompt)


@trio_test
async def test_a_client_that_leaves_stops_the_rest() -> None:
    executor = ReadableExecutor()
    executor.gate.clear()
    async with asking(executor) as server:
        async with connected(server) as wire:
            await wire.send(post(request({str(n): NOUL for n in range(9)}), path=PATH))
            await server.wait_busy(running=1)
            reset(wire)
        (record,) = await records(server)
        executor.gate.set()
        await server.wait_rows_free()
        counted = await metrics(server)
        assert (record["status"], record["finish_reason"]) == (LEFT, None)
        assert executor.tokens_computed <= record["prompt_tokens"]
        assert counted["request_success_totalstop"] == 0
        answer = await ask(server, {"q": NOUL})
    assert answer.json()["usage"]["input_tokens"] == record["prompt_tokens"]


class Unreadable(ReadableExecutor):
    """Has a value for some logits from its step of that number on, counted from 1."""

    def __init__(self, step: int, value: float, at: slice | list[int]) -> None:
        super().__init__()
        self._step, self._value, self._at = step, value, at

    def step(self, slices: Sequence[Slice]) -> Float32:
        logits = super().step(slices)
        if self.steps >= self._step:
            logits[:, self._at] = self._value
        return logits


@trio_test
async def test_an_engine_that_fails_or_reads_nothing_of_use() -> None:
    questions = {"a": NOUL, "b": NOUL}
    failed = "the engine failed during the request"
    for executor, message in (
        (Unreadable(2, np.nan, slice(None)), failed),
        (ReadableExecutor(fail_at=(2,)), failed),
        (
            Unreadable(2, -np.inf, TOKENIZER.encode("YesNo")),
            "the model gave no usable reading for a question",
        ),
    ):
        async with asking(executor) as server:
            response = await ask(server, questions)
            assert told(response) == (500, None, message)
            (record,) = await records(server)
            assert (record["status"], record["finish_reason"]) == (500, None)


@trio_test
async def test_an_engine_that_has_stopped() -> None:
    async with asking() as server:
        server.service.engine.stop()
        response = await ask(server, {"q": NOUL})
    assert told(response) == (503, None, "the engine is unavailable")


@trio_test
async def test_a_client_that_leaves_ends_the_tokenizing() -> None:
    """Its 64 long prompts take a while, of which the rest is not written any more."""
    state, written = "x" * 1000, 0

    class Counted(ZeroShot):
        def prompt(self, state: str, question: Question) -> Prompt:
            nonlocal written
            written += 1
            if written == 1:
                # The client's end has to be seen while this one is written.
                begun.set()
                assert left.wait(10)
            return super().prompt(state, question)

    begun, left = threading.Event(), threading.Event()
    async with asking() as server:
        service = server.service
        service._zero_shot = Counted.of(service.template, TOKENIZER, service.vocab_size)
        async with connected(server) as wire:
            await wire.send(
                post(request({str(n): NOUL for n in range(64)}, state=state), path=PATH)
            )
            await trio.to_thread.run_sync(begun.wait, 10)
            reset(wire)
        await trio.sleep(0.5)
        left.set()
        (record,) = await records(server)
    assert record["status"] == LEFT
    assert written < 64
