"""typesafe-sdk, unchanged: typed questions, answers, and errors as its own exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import httpx2
import pytest
import trio
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Box,
    Choice,
    Content,
    Image,
    Noul,
    Question,
    RetryPolicy,
    Score,
    SystemOneResponse,
    TypeSafeAPIError,
    TypeSafeAPIResponseValidationError,
    TypeSafeBadRequestError,
    TypeSafeClient,
    TypeSafeInternalServerError,
    TypeSafeRateLimitError,
)

from tests.support.readable import TOKENIZER, ReadableExecutor
from tests.support.serving import MODEL, Running, serving, trio_test

NO_RETRIES = RetryPolicy(max_retries=0)
ONCE_AGAIN = RetryPolicy(max_retries=1, backoff_initial=0)

STATE: Content = {"order": 7, "notes": ["zu spät", 1.5, None, "🙂"]}
LATE = Noul(instructions="Late?")
QUESTIONS: Mapping[str, Question] = {
    "late": LATE,
    "zürich": Noul(criteria={"true": ["there"], "false": None}),
    "team": Choice(
        instructions={"ask": "Who?"}, criteria={"z": None, "a b": {"n": 1}, "10": "x", "é": ["y"]}
    ),
    "mood": Score(instructions=["How?"], criteria=["fine", ["so"], {"a": 1.5, "b": None}]),
    "as a dictionary": {"type": "choice", "criteria": {"yes": None, "no": None}},
}
# The same in plain JSON.
BODY: Mapping[str, Any] = {
    "model": MODEL,
    "state": STATE,
    "questions": {
        "late": {"type": "noul", "instructions": "Late?"},
        "zürich": {"type": "noul", "criteria": {"true": ["there"], "false": None}},
        "team": {
            "type": "choice",
            "instructions": {"ask": "Who?"},
            "criteria": {"z": None, "a b": {"n": 1}, "10": "x", "é": ["y"]},
        },
        "mood": {
            "type": "score",
            "instructions": ["How?"],
            "criteria": ["fine", ["so"], {"a": 1.5, "b": None}],
        },
        "as a dictionary": {"type": "choice", "criteria": {"yes": None, "no": None}},
    },
}


def settings(server: Running) -> dict[str, Any]:
    return {"api_key": "none", "base_url": server.url, "model": MODEL, "retry": NO_RETRIES}


def in_thread(server: Running) -> SystemOneResponse:
    with TypeSafeClient(**settings(server)) as client:
        return client.system_one(STATE, QUESTIONS)


def assert_read(answer: SystemOneResponse, raw: dict[str, Any]) -> None:
    """The SDK's typed answer holds just what ``raw`` does, and nothing was lost on the way."""
    assert answer.raw_http_response.json() == raw
    assert answer.model_dump(mode="json") == raw
    assert list(answer.answers) == list(raw["answers"]) == list(QUESTIONS)
    assert (answer.model, answer.usage.output_tokens) == (MODEL, 0)
    assert list(answer.nouls) == ["late", "zürich"]
    assert answer.nouls["late"].noul == raw["answers"]["late"]["noul"]
    assert list(answer.choices) == ["team", "as a dictionary"]
    team = answer.choices["team"]
    assert list(team.probabilities) == ["z", "a b", "10", "é"]
    assert team.probabilities[team.choice] == max(team.probabilities.values())
    mood = answer.scores["mood"]
    assert mood.legend == {0: "fine", 1: ["so"], 2: {"a": 1.5, "b": None}}
    assert mood.score == mood.probabilities[1] + 2 * mood.probabilities[2]


@trio_test
async def test_answers_are_typed_and_those_of_the_raw_exchange() -> None:
    async with serving(ReadableExecutor(), tokenizer=TOKENIZER) as server:
        raw = (await server.client.post("/v1/systemone", json=dict(BODY))).json()
        assert_read(await trio.to_thread.run_sync(in_thread, server), raw)
        async with AsyncTypeSafeClient(**settings(server)) as client:
            assert_read(await client.system_one(STATE, QUESTIONS), raw)


@trio_test
async def test_compressed_requests_are_answered_as_plain_ones() -> None:
    """Of a kibibyte and more, by its own choice where there is zstd."""
    sent: list[str | None] = []

    async def note(request: httpx2.Request) -> None:
        sent.append(request.headers.get("content-encoding"))

    state: Content = {"order": 7, "notes": ["zu spät 🙂 "] * 200}
    raws = []
    async with serving(ReadableExecutor(), tokenizer=TOKENIZER) as server:
        compressions: tuple[Literal["zstd", False] | None, ...] = (None, "zstd", False)
        for compression in compressions:
            async with (
                httpx2.AsyncClient(event_hooks={"request": [note]}) as http,
                AsyncTypeSafeClient(
                    **settings(server), compression=compression, http_client=http
                ) as client,
            ):
                raws.append((await client.system_one(state, QUESTIONS)).model_dump(mode="json"))
    assert sent == ["zstd", "zstd", None]
    assert raws[0] == raws[1] == raws[2]


PNG = b"\x89PNG\r\n\x1a\n"
TOO_MANY = Choice(criteria=dict.fromkeys(map(str, range(27))))

# What of a call, and the field that its refusal names
REFUSED: list[tuple[dict[str, Any], str | None]] = [
    ({"model": "jev-latest"}, "model"),
    ({"questions": {"q": TOO_MANY}}, "questions.q.criteria"),
    ({"questions": {"q": Box(instructions="The dog")}}, "questions.q.type"),
    ({"extra_body": {"temperature": 0}}, "temperature"),
    # Images make it multipart/form-data, which has no fields to name.
    ({"state": Image(PNG)}, None),
]


@trio_test
async def test_a_refusal_is_a_bad_request_that_names_its_field() -> None:
    async with (
        serving(ReadableExecutor(), tokenizer=TOKENIZER) as server,
        AsyncTypeSafeClient(**settings(server)) as client,
    ):
        for fields, param in REFUSED:
            with pytest.raises(TypeSafeBadRequestError) as caught:
                await client.system_one(**{"state": "s", "questions": {"q": LATE}, **fields})
            error = caught.value.body["error"]
            assert (caught.value.status, error["param"]) == (400, param), fields
            assert error["message"] in str(caught.value)


def refused_in_thread(server: Running) -> TypeSafeAPIError:
    with (
        TypeSafeClient(**settings(server)) as client,
        pytest.raises(TypeSafeBadRequestError) as caught,
    ):
        client.system_one("s", {"q": LATE}, model="jev-latest")
    return caught.value


@trio_test
async def test_a_refusal_of_the_client_without_async() -> None:
    async with serving(ReadableExecutor(), tokenizer=TOKENIZER) as server:
        refused = await trio.to_thread.run_sync(refused_in_thread, server)
    assert refused.body["error"]["message"] == f'this server serves "{MODEL}", not "jev-latest"'


@trio_test
async def test_a_full_queue_is_the_rate_limit() -> None:
    executor = ReadableExecutor()
    executor.gate.clear()
    async with (
        serving(executor, tokenizer=TOKENIZER, queue_depth=0) as server,
        AsyncTypeSafeClient(**settings(server)) as client,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(client.system_one, "s", {"q": LATE})
        await server.wait_busy(running=1)
        with pytest.raises(TypeSafeRateLimitError, match="429 the request queue is full"):
            await client.system_one("s", {"q": LATE})
        executor.gate.set()


@trio_test
async def test_a_failure_is_the_servers_and_is_tried_again() -> None:
    async with (
        serving(ReadableExecutor(fail_at=(1, 2)), tokenizer=TOKENIZER) as server,
        AsyncTypeSafeClient(**settings(server)) as client,
    ):
        with pytest.raises(TypeSafeInternalServerError, match="500 the engine failed"):
            await client.system_one("s", {"q": LATE})
        answer = await client.system_one("s", {"q": LATE}, retry=ONCE_AGAIN)
        assert 0 <= answer.nouls["q"].noul <= 1
        server.service.engine.stop()
        with pytest.raises(TypeSafeInternalServerError, match="503 the engine is unavailable"):
            await client.system_one("s", {"q": LATE})


@trio_test
async def test_the_list_of_models_is_openais_and_not_the_sdks() -> None:
    async with (
        serving(ReadableExecutor(), tokenizer=TOKENIZER) as server,
        AsyncTypeSafeClient(**settings(server)) as client,
    ):
        with pytest.raises(TypeSafeAPIResponseValidationError) as caught:
            await client.models.list()
    assert caught.value.field_path == "models"
    assert [model["id"] for model in caught.value.body["data"]] == [MODEL]
