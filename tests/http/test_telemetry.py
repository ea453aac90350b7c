"""Records, log lines and request ids: one for each request, whatever ended it, and never text."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from caldrix.engine.generation import GeneratedSequence, Generation, GenerationRequest
from caldrix.http.caldrix.responses import CHAT, Envelope
from caldrix.http.config import ServerConfig
from caldrix.http.records import MOST_RECORDS
from caldrix.http.telemetry import Telemetry
from caldrix.http.watch import LEFT
from caldrix.text.assembler import TextAssembler
from tests.support.scripted import endless
from tests.support.serving import MODEL, Running, never_ends, says, scripted, serving, trio_test
from tests.support.wire import TEXT, connected, head, post, streaming

CHAT_PATH = "/v1/chat/completions"
REQUEST = {"model": MODEL, "prompt": "hi"}
STREAM = {**REQUEST, "stream": True}
USAGE = {"stream_options": {"include_usage": True}}
GREEDY = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": None,
}
UNKNOWN = (
    "id",
    "queue_ms",
    "prefill_ms",
    "decode_ms",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "finish_reason",
    "sampling",
    "speculative",
    "lane",
)
"""What nobody can say of a request that was refused."""

Record = dict[str, Any]


async def records(server: Running) -> list[Record]:
    answer = await server.client.get("/debug/requests")
    assert answer.headers["content-type"] == "application/json"
    listed = answer.json()["requests"]
    assert isinstance(listed, list)
    return listed


async def a_record(server: Running) -> Record:
    """The one record, once it is there."""
    with trio.fail_after(5):
        while not (found := await records(server)):  # noqa: ASYNC110  # no event
            await trio.sleep(0.002)
    (record,) = found
    return record


def assert_refused(record: Record, status: int, path: str = TEXT) -> None:
    assert (record["status"], record["route"]) == (status, path)
    assert {name: record[name] for name in UNKNOWN} == dict.fromkeys(UNKNOWN)


@trio_test
async def test_an_answer_has_a_record() -> None:
    async with serving(says("hello")) as server:
        before = time.time()
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "top_k": 5}
        answer = (await server.client.post(CHAT_PATH, json=body)).json()
        took = time.time() - before
        (record,) = await records(server)
    assert before <= record.pop("received") <= before + took
    phases = [record.pop(name) for name in ("queue_ms", "prefill_ms", "decode_ms")]
    assert min(phases) >= 0
    assert sum(phases) <= took * 1000
    assert record == {
        "id": answer["id"],
        "route": CHAT_PATH,
        "status": 200,
        "prompt_tokens": answer["usage"]["prompt_tokens"],
        "completion_tokens": 5,
        "cached_tokens": 0,
        "finish_reason": "stop",
        "sampling": {**GREEDY, "top_k": 5},
        "speculative": None,
        "lane": "scripted",
    }


@trio_test
async def test_a_stream_has_the_record_of_a_whole_answer() -> None:
    async with serving(says("one two three")) as server:
        body = {**REQUEST, "stop": " t"}
        whole = (await server.client.post(TEXT, json=body)).json()
        stream = await server.client.post(TEXT, json={**body, "stream": True, **USAGE})
        usage = json.loads(stream.text.split("\n\n")[-3].removeprefix("data: "))["usage"]
        of_stream, of_whole = await records(server)
    assert usage == whole["usage"]
    assert usage["completion_tokens"] == len("one t")
    assert (of_stream["id"], of_whole["id"]) == ("cmpl-2", whole["id"])
    # It is the same prompt in the same row, of which the last token is always computed.
    assert (of_whole["cached_tokens"], of_stream["cached_tokens"]) == (0, len("hi") - 1)
    same = ("status", "prompt_tokens", "completion_tokens", "finish_reason", "sampling")
    assert [of_stream[name] for name in same] == [of_whole[name] for name in same]
    assert of_stream["finish_reason"] == "stop"


@trio_test
async def test_the_seed_that_was_drawn_gives_the_same_answer_after_a_restart() -> None:
    # So hot that each seed gives a text of its own.
    async with serving(never_ends()) as server:
        body = {
            **REQUEST,
            "temperature": 1000,
            "max_tokens": 20,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        first, other = [(await server.client.post(TEXT, json=body)).json() for _ in range(2)]
        used = (await records(server))[1]["sampling"]
    async with serving(never_ends()) as server:
        again = (await server.client.post(TEXT, json={**body, **used})).json()
    assert isinstance(used["seed"], int)
    ids = [answer["choices"][0]["token_ids"] for answer in (first, other, again)]
    assert ids[0] == ids[2] != ids[1]


# What the application itself refuses: (bytes, status)
REFUSED = {
    "field": (post({**REQUEST, "top_p": 2}), 400),
    "type": (post(REQUEST).replace(b"application/json", b"text/plain"), 400),
    "length": (head(f"POST {TEXT} HTTP/1.1", f"Content-Length: {10**8}"), 413),
    "body": (post(REQUEST)[:-1], 408),
    "host": (post(REQUEST).replace(b"localhost", b"example.com"), 403),
    "prompt": (post({**REQUEST, "prompt": "a" * 4096}), 400),
}


@pytest.mark.parametrize(("sent", "status"), REFUSED.values(), ids=REFUSED)
@trio_test
async def test_a_refused_request_has_a_record(sent: bytes, status: int) -> None:
    config = ServerConfig(port=0, body_timeout=0.05)
    async with serving(says("ok"), config=config) as server, connected(server) as wire:
        await wire.send(sent)
        assert (await wire.answer()).status == status
        assert_refused(await a_record(server), status)


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_one_that_found_no_place_has_a_record(body: dict[str, object]) -> None:
    async with serving(never_ends(), queue_depth=0) as server, streaming(server):
        assert (await server.client.post(TEXT, json=body)).status_code == 429
        assert_refused(await a_record(server), 429)


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_client_that_left_while_it_waited(body: dict[str, object]) -> None:
    async with serving(never_ends(), queue_depth=1) as server, streaming(server):
        with trio.move_on_after(0.1):
            await server.client.post(TEXT, json=body)
        record = await a_record(server)
    assert (record["status"], record["finish_reason"], record["lane"]) == (LEFT, None, None)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (2, 0)
    assert record["queue_ms"] > 0
    assert (record["prefill_ms"], record["decode_ms"]) == (None, None)


@pytest.mark.parametrize("body", [REQUEST, STREAM])
@trio_test
async def test_a_client_that_left_while_it_was_answered(body: dict[str, object]) -> None:
    async with serving(never_ends()) as server:
        with trio.move_on_after(0.1):
            await server.client.post(TEXT, json=body)
        record = await a_record(server)
    assert (record["status"], record["finish_reason"]) == (LEFT, None)
    assert record["id"] == "cmpl-1"
    assert record["completion_tokens"] > 0
    assert record["decode_ms"] > 0
    assert record["sampling"] == GREEDY


@pytest.mark.parametrize(("body", "sent"), [(REQUEST, 500), (STREAM, 200)])
@trio_test
async def test_a_failure_is_recorded_with_its_own_status(
    body: dict[str, object], sent: int
) -> None:
    async with serving(scripted(endless(0), fail_at=(3,))) as server:
        assert (await server.client.post(TEXT, json=body)).status_code == sent
        record = await a_record(server)
    assert (record["status"], record["finish_reason"]) == (500, None)
    assert (record["prompt_tokens"], record["completion_tokens"]) == (2, 2)


@trio_test
async def test_a_stream_that_shutdown_ended() -> None:
    telemetry: list[Telemetry] = []
    config = ServerConfig(port=0, drain_timeout=0.0)
    async with serving(never_ends(), config=config) as server, streaming(server) as wire:
        telemetry.append(server.service.telemetry)
        server.shutdown.request()
        await wire.rest()
    (record,) = telemetry[0].records
    assert (record.status, record.finish_reason) == (503, None)


def test_the_last_256_are_kept() -> None:
    telemetry = Telemetry(lane="none")
    for status in range(1000, 1000 + MOST_RECORDS + 2):
        telemetry.watch(TEXT).end(status)
    statuses = [record.status for record in telemetry.records]
    assert statuses == list(range(1000 + MOST_RECORDS + 1, 1001, -1))


@trio_test
async def test_other_requests_leave_no_record() -> None:
    async with serving(says("ok")) as server:
        for path in ("/healthz", "/metrics", "/v1/models", "/debug/requests", TEXT, "/nope"):
            await server.client.get(path)
        assert await records(server) == []


def count_speculation(timeline_of: Callable[[Generation], None]) -> tuple[Record, Record]:
    """The usage and the record of an answer whose timeline was filled like that."""
    telemetry = Telemetry(lane="none")
    watch = telemetry.watch(CHAT_PATH)
    request = GenerationRequest((1, 2, 3))
    generation = Generation(GeneratedSequence(request, 10))
    watch.begin("chatcmpl-1", request, generation)
    timeline_of(generation)
    generation.timeline.started = generation.timeline.submitted
    counts = watch.finish("length", ran_out=True)
    watch.end(200)
    usage = Envelope(CHAT, 1, 0, MODEL).usage_chunk(counts)["usage"]
    assert isinstance(usage, dict)
    return usage, dict(telemetry.records[0].to_json())


def test_speculation_is_told_where_something_was_proposed() -> None:
    def guessed(generation: Generation) -> None:
        generation.timeline.proposed_tokens = 4

    usage, record = count_speculation(guessed)
    assert usage["speculative"] == record["speculative"] == {"proposed": 4, "accepted": 0}
    usage, record = count_speculation(lambda generation: None)
    assert "speculative" not in usage
    assert record["speculative"] is None


def told(entries: list[Any]) -> list[Any]:
    return [entry for entry in entries if entry["event"] == "request"]


@trio_test
async def test_each_request_has_a_line_in_the_log() -> None:
    with capture_logs() as logs:
        async with serving(says("ok")) as server:
            await server.client.post(TEXT, json=REQUEST)
            await server.client.post(TEXT, json={**STREAM, "max_tokens": 1})
            await server.client.post(TEXT, json={**REQUEST, "top_p": 2})
            newest, *_ = await records(server)
    whole, stream, refused = told(logs)
    assert {entry["log_level"] for entry in told(logs)} == {"info"}
    assert (whole["id"], whole["status"], whole["finish_reason"]) == ("cmpl-1", 200, "stop")
    assert (stream["id"], stream["finish_reason"]) == ("cmpl-2", "length")
    assert (stream["prompt_tokens"], stream["completion_tokens"], stream["cached_tokens"]) == (
        2,
        1,
        1,
    )
    assert {"queue_ms", "prefill_ms", "decode_ms"} <= stream.keys()
    assert refused == {"event": "request", "log_level": "info", "route": TEXT, "status": 400}
    assert newest["status"] == 400


@trio_test
async def test_no_text_is_recorded_or_logged() -> None:
    secret = "zyzzyva"
    with capture_logs() as logs:
        async with serving(says(f"{secret} answer"), replay_ring=4) as server:
            texts = {"prompt": f"{secret} prompt", "stop": f"{secret} stop", "user": secret}
            for body in ({**REQUEST, **texts}, {**STREAM, **texts}, {"model": secret, **texts}):
                await server.client.post(TEXT, json=body)
            pages = [
                (await server.client.get(path)).text
                for path in ("/debug/requests", "/debug/replay", "/metrics")
            ]
    assert len(told(logs)) == 3
    assert secret not in "".join(pages)
    assert secret not in repr(logs)


@trio_test
async def test_what_is_logged_meanwhile_carries_the_requests_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(assembler: TextAssembler, token: int) -> str:
        raise RuntimeError("the tokenizer is broken")

    with capture_logs([structlog.contextvars.merge_contextvars]) as logs:
        async with serving(says("ok")) as server:
            monkeypatch.setattr(TextAssembler, "push", fail)
            assert (await server.client.post(TEXT, json=REQUEST)).status_code == 500
            assert (await server.client.post(TEXT, json=STREAM)).status_code == 500
            # On the same connection, and of no answer.
            assert (await server.client.post(TEXT, json={"model": "m"})).status_code == 400
    failures = [entry["id"] for entry in logs if entry["event"] == "request_failed"]
    assert failures == ["cmpl-1", "cmpl-2"]
    assert [entry.get("id") for entry in told(logs)] == ["cmpl-1", "cmpl-2", None]


@trio_test
async def test_answers_tell_their_id_in_a_header() -> None:
    async with serving(says("ok")) as server:
        whole = await server.client.post(TEXT, json=REQUEST)
        stream = await server.client.post(TEXT, json=STREAM)
        refused = await server.client.post(TEXT, json={**REQUEST, "top_p": 2})
    assert whole.headers["x-request-id"] == whole.json()["id"] == "cmpl-1"
    assert stream.headers["x-request-id"] == "cmpl-2"
    assert '"id":"cmpl-2"' in stream.text
    assert "x-request-id" not in refused.headers
