"""Images over HTTP: their way to the engine, what holds it up, and all that can go wrong on it."""

from __future__ import annotations

import gc
import gzip
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import numpy as np
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from caldrix.http import server as server_module
from caldrix.http.config import MEBIBYTE, MOST_BODY, MOST_BODY_WITH_IMAGES, ServerConfig, Timeouts
from caldrix.models.lane import LaneError, LaneLost
from caldrix.vision.layout import AROUND_IMAGE, WHOLE_IMAGE
from caldrix.vision.parts import PLACEHOLDER, EncodedImage
from tests.support.eyes import (
    TOKENIZER,
    TOKENS_PER_TILE,
    Eyes,
    LookingExecutor,
    broken_picture,
    grey,
    picture,
    text,
    user,
)
from tests.support.serving import MODEL, Running, says, serving, trio_test
from tests.support.tiny_vision_model import TEMPLATE
from tests.support.wire import connected, post, sent_chunks, tasks_living

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
Body = Mapping[str, object]
IMPATIENT = ServerConfig(port=0, timeouts=Timeouts(half_closed=0))
"""Of a server that takes a client for gone as soon as it ends its sending."""


@asynccontextmanager
async def seeing(
    eyes: Eyes | None = None, *, queue_depth: int = 64, **settings: Any
) -> AsyncIterator[Running]:
    """A server whose model has eyes."""
    async with serving(
        settings.pop("executor", None) or LookingExecutor(),
        tokenizer=TOKENIZER,
        template=TEMPLATE,
        images=(eyes or Eyes()).reader(queue_depth=queue_depth),
        queue_depth=queue_depth,
        **settings,
    ) as server:
        yield server


def chat(*messages: Mapping[str, object], **others: object) -> Body:
    return {"model": MODEL, "messages": list(messages or [user(picture(), "What?")]), **others}


async def ask(server: Running, body: Body | None = None) -> httpx2.Response:
    return await server.client.post(CHAT, json=body or chat())


def told(answer: httpx2.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


def streamed_error(received: bytes) -> dict[str, Any]:
    """The error that is a stream's last event."""
    last = sent_chunks(received).removesuffix(b"\n\n").rpartition(b"\n\n")[2]
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert isinstance(error, dict)
    return error


def one_tile() -> str:
    return f"{AROUND_IMAGE}{WHOLE_IMAGE}{PLACEHOLDER * TOKENS_PER_TILE}{AROUND_IMAGE}"


# What an image becomes


@trio_test
async def test_images_are_seen_in_their_order_and_counted() -> None:
    executor = LookingExecutor()
    body = chat(
        {"role": "system", "content": "Be brief."},
        user(picture(grey(0)), "one", picture(grey(255)), "two"),
        {"role": "assistant", "content": "Well."},
        user("three", picture(grey(51))),
    )
    prompt = (
        "<|im_start|>System: Be brief.<end_of_utterance>\n"
        f"User:{one_tile()}one{one_tile()}two<end_of_utterance>\n"
        "Assistant: Well.<end_of_utterance>\n"
        f"User: three{one_tile()}<end_of_utterance>\nAssistant:"
    )
    async with seeing(executor=executor) as server:
        answer = await ask(server, body)
    assert answer.json()["choices"][0]["message"]["content"] == "ok"
    assert answer.json()["usage"]["prompt_tokens"] == len(TOKENIZER.encode_prompt(prompt))
    seen = np.concatenate(executor.features)[::TOKENS_PER_TILE, 0]
    np.testing.assert_allclose(seen, [0, 1, 0.2], atol=1e-6)


@pytest.mark.parametrize(("detail", "tiles"), [("low", 1), ("high", 13), ("auto", 13)])
@trio_test
async def test_detail_is_how_many_tiles_the_tower_sees(detail: str, tiles: int) -> None:
    eyes = Eyes()
    async with seeing(eyes) as server:
        shown = picture(grey(128, 200, 150), detail=detail)
        answer = await ask(server, chat(user(shown)))
    assert answer.status_code == 200
    assert (eyes.decoded, eyes.seen) == (1, tiles)


@trio_test
async def test_an_image_request_is_computed_whole_recorded_and_not_to_be_replayed() -> None:
    executor = LookingExecutor()
    async with seeing(executor=executor, replay_ring=4, prefix_rows=1) as server:
        asked = chat(user(picture(), "What is in the picture that you see above?"))
        answers = [(await ask(server, asked)).json() for _ in range(2)]
        prompt = answers[0]["usage"]["prompt_tokens"]
        spelled = TOKENIZER.encode_prompt(
            f"<|im_start|>User:{one_tile()}What is in the picture that you see above?"
            "<end_of_utterance>\nAssistant:"
        )
        assert len(spelled) == prompt
        # The very same tokens, without what they stand for, and then with it again.
        await server.client.post(TEXT, json={"model": MODEL, "prompt": spelled})
        await ask(server, asked)
        listed = (await server.client.get("/debug/requests")).json()["requests"]
        kept = (await server.client.get("/debug/replay")).json()["requests"]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert [each["route"] for each in listed] == [CHAT, TEXT, CHAT, CHAT]
    assert [each["prompt_tokens"] for each in listed] == [prompt] * 4
    assert [each["cached_tokens"] for each in listed] == [0] * 4
    assert [each["route"] for each in kept] == [TEXT]
    assert executor.tokens_computed >= 4 * prompt
    assert not executor.copies


# Whose turn it is


@trio_test
async def test_two_requests_decode_some_wait_and_one_more_is_refused() -> None:
    eyes = Eyes()
    eyes.decoder_gate.clear()
    answers: list[int] = []
    async with (
        seeing(eyes, queue_depth=1, config=IMPATIENT) as server,
        trio.open_nursery() as nursery,
    ):

        async def three_images() -> None:
            asked = chat(user(picture(), picture(), picture()))
            answers.append((await ask(server, asked)).status_code)

        for _ in range(3):
            nursery.start_soon(three_images)
        images = server.service.images
        assert images is not None
        await eyes.until(lambda eyes: eyes.at_once == 2 and images.present == 3)
        refused = await ask(server)
        assert told(refused) == (429, None, "the image decode queue is full")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        stream = await ask(server, chat(stream=True))
        assert told(stream)[0] == 429
        eyes.decoder_gate.set()
    assert answers == [200] * 3
    assert (eyes.decoded, eyes.most_at_once) == (9, 2)


@trio_test
async def test_images_are_not_seen_for_an_engine_whose_queue_is_full() -> None:
    eyes, executor = Eyes(), LookingExecutor()
    executor.gate.clear()
    async with (
        seeing(eyes, executor=executor, queue_depth=0) as server,
        trio.open_nursery() as nursery,
    ):
        text = {"model": MODEL, "prompt": "a"}
        nursery.start_soon(lambda: server.client.post(TEXT, json=text))
        await server.wait_busy(running=1)
        assert told(await ask(server)) == (429, None, "the request queue is full")
        assert (eyes.decoded, eyes.seen) == (0, 0)
        executor.gate.set()


@trio_test
async def test_images_are_let_go_of_once_they_are_seen() -> None:
    executor = LookingExecutor()
    async with seeing(executor=executor) as server, trio.open_nursery() as nursery:
        executor.gate.clear()
        nursery.start_soon(ask, server)
        await server.wait_busy(running=1)
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, EncodedImage)]
        executor.gate.set()


@trio_test
async def test_a_requests_images_are_decoded_one_after_the_other() -> None:
    eyes = Eyes()
    async with seeing(eyes) as server:
        assert (await ask(server, chat(user(*[picture()] * 8)))).status_code == 200
    assert (eyes.decoded, eyes.most_at_once, eyes.seen) == (8, 1, 8)


Stage = Callable[[Eyes], bool]
STAGES: dict[str, tuple[str, Stage]] = {
    "while it decodes": ("decoder_gate", lambda eyes: eyes.at_once == 2),
    "while the tower works": ("tower_gate", lambda eyes: eyes.decoded == 2 and eyes.seen == 1),
}


@pytest.mark.parametrize(("gate", "reached"), STAGES.values(), ids=STAGES)
@trio_test
async def test_a_place_is_free_again_once_its_request_has_left(gate: str, reached: Stage) -> None:
    eyes = Eyes()
    getattr(eyes, gate).clear()
    async with seeing(eyes, queue_depth=0, config=IMPATIENT) as server:
        before = tasks_living()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask, server, chat(user(*[picture()] * 8)))
            nursery.start_soon(ask, server, chat(user(*[picture()] * 8)))
            await eyes.until(reached)
            assert told(await ask(server))[0] == 429
            nursery.cancel_scope.cancel()
        # Until the server has seen it.
        await wait_all_tasks_blocked(0.05)
        getattr(eyes, gate).set()
        with trio.fail_after(5):
            while tasks_living() > before + 1:  # noqa: ASYNC110  # a task's end is no event
                await trio.sleep(0.002)
        # Of those who left, what was in work is done, and no more.
        assert eyes.decoded <= 2
        assert eyes.seen <= 2
        assert (await ask(server)).status_code == 200


async def ask_briefly(server: Running) -> httpx2.Response | None:
    """The answer, if it comes at once; else the client has left, and its place is free again."""
    with trio.move_on_after(0.2):
        return await ask(server)
    await wait_all_tasks_blocked(0.05)
    return None


@trio_test
async def test_a_place_in_the_queue_is_free_again_once_its_request_has_left() -> None:
    eyes = Eyes()
    eyes.decoder_gate.clear()
    async with (
        seeing(eyes, queue_depth=1, config=IMPATIENT) as server,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ask, server)
        nursery.start_soon(ask, server)
        await eyes.until(lambda eyes: eyes.at_once == 2)
        # Each of them would be refused if the one before it had left its place taken.
        for _ in range(3):
            assert await ask_briefly(server) is None
        eyes.decoder_gate.set()
    assert eyes.decoded == 2


@pytest.mark.parametrize("gate", ["decoder_gate", "tower_gate"])
@trio_test
async def test_others_go_on_meanwhile(gate: str) -> None:
    eyes = Eyes()
    getattr(eyes, gate).clear()
    async with seeing(eyes) as server, trio.open_nursery() as nursery:
        # More than there are threads for texts.
        for _ in range(6):
            nursery.start_soon(ask, server)
        await eyes.until(lambda eyes: eyes.decoded == 2)
        assert (await server.client.get("/healthz")).text == "ok"
        asked = chat(user("Only words."), stream=True)
        assert "data: [DONE]" in (await ask(server, asked)).text
        assert (await server.client.get("/debug/requests")).status_code == 200
        getattr(eyes, gate).set()


# What goes wrong


@pytest.mark.parametrize("stream", [False, True])
@trio_test
async def test_an_image_that_cannot_be_decoded_is_named(stream: bool) -> None:
    eyes = Eyes()
    async with seeing(eyes) as server:
        first = await ask(server, chat(user(broken_picture()), stream=stream))
        assert told(first)[:2] == (400, "messages[0].content[0]")
        assert "damaged or ends early" in told(first)[2]
        second = chat(user(picture(), "one"), user("two", broken_picture()), stream=stream)
        assert told(await ask(server, second))[:2] == (400, "messages[1].content[1]")
        assert eyes.decoded == 3
        assert (await ask(server)).status_code == 200


@trio_test
async def test_it_is_named_in_an_event_where_the_stream_has_begun() -> None:
    eyes = Eyes()
    eyes.decoder_gate.clear()
    config = ServerConfig(port=0, timeouts=Timeouts(comment=0.05))
    async with seeing(eyes, config=config) as server, connected(server) as wire:
        body = chat(user("one", broken_picture()), stream=True)
        await wire.send(post(body, "Connection: close", path=CHAT))
        received = await wire.until(b": keep-alive")
        eyes.decoder_gate.set()
        error = streamed_error(received + await wire.rest())
        listed = (await server.client.get("/debug/requests")).json()["requests"]
    assert b" 200 " in received
    assert error["param"] == "messages[0].content[1]"
    assert listed[0]["status"] == 400


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", [LaneError("no features"), ZeroDivisionError("a mistake")])
@trio_test
async def test_a_tower_that_fails_costs_one_request(fault: Exception, stream: bool) -> None:
    eyes = Eyes()
    eyes.fault = fault
    with capture_logs() as logs:
        async with seeing(eyes, queue_depth=0) as server:
            for _ in range(3):
                answer = await ask(server, chat(stream=stream))
                assert told(answer)[:2] == (500, None)
                assert str(fault) not in answer.text
            eyes.fault = None
            assert (await ask(server, chat(stream=stream))).status_code == 200
            assert not server.service.engine.failed
    assert sum(entry["log_level"] == "error" for entry in logs) == 3


@trio_test
async def test_a_lane_lost_by_the_tower_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 1.5)
    eyes = Eyes()
    eyes.fault = LaneLost("the device is gone")
    with capture_logs() as logs:
        async with seeing(eyes) as server:
            # The server may end the connection with this answer, and not have said so in its head.
            headers = {"Connection": "close"}
            failed = await server.client.post(CHAT, json=chat(), headers=headers)
            assert told(failed) == (500, None, "the engine failed during the request")
            assert server.service.engine.failed
            assert told(await ask(server)) == (503, None, "the engine is unavailable")
            assert (await server.client.get("/healthz")).status_code == 503
            with trio.fail_after(10):
                await server.finished.wait()
    said = [entry["requests"] for entry in logs if entry["event"] == "engine_failed"]
    assert said == [["chatcmpl-1"]]


@trio_test
async def test_a_server_that_stops_tells_those_whose_images_are_at_work() -> None:
    eyes = Eyes()
    eyes.decoder_gate.clear()
    answers: list[tuple[int, str | None, str]] = []
    config = ServerConfig(port=0, drain_timeout=0.05)
    async with seeing(eyes, config=config) as server, trio.open_nursery() as nursery:

        async def eight_images() -> None:
            answers.append(told(await ask(server, chat(user(*[picture()] * 8)))))

        for _ in range(3):
            nursery.start_soon(eight_images)
        await eyes.until(lambda eyes: eyes.at_once == 2)
        server.shutdown.request()
        await server.service.engine.ended.wait()
        eyes.decoder_gate.set()
        await server.finished.wait()
    assert answers == [(503, None, "the engine is unavailable")] * 3
    assert eyes.decoded == 2


@trio_test
async def test_a_server_that_cuts_its_clients_off_waits_for_the_image_in_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_module, "_FAREWELL", 0.05)
    eyes = Eyes()
    eyes.tower_gate.clear()
    config = ServerConfig(port=0, drain_timeout=0.0)
    async with seeing(eyes, config=config) as server, trio.open_nursery() as nursery:

        async def two_images() -> None:
            answer = await ask(server, chat(user(picture(), picture())))
            assert told(answer) == (503, None, "the engine is unavailable")

        nursery.start_soon(two_images)
        await eyes.until(lambda eyes: eyes.seen == 1)
        server.shutdown.request()
        await server.service.engine.ended.wait()
        await trio.sleep(0.2)
        assert not server.finished.is_set()
        eyes.tower_gate.set()
        await server.finished.wait()
    assert eyes.decoded == 1


# What is refused, with nothing decoded


REFUSED: dict[str, tuple[Body, str, str]] = {
    "nine images": (
        chat(user(*[picture()] * 5), user(*[picture()] * 4)),
        "messages",
        "at most 8 images can come in one request, got 9",
    ),
    "a placeholder in a part": (
        chat(user(picture(), "an <image> of a cat")),
        "messages",
        "the image placeholder count",
    ),
    "a placeholder in a string": (
        chat({"role": "user", "content": "<image>"}),
        "messages",
        "the image placeholder count",
    ),
    "a placeholder in a system message": (
        chat({"role": "system", "content": "<image>"}, user(picture())),
        "messages",
        "the image placeholder count",
    ),
    "a placeholder as a role": (
        chat({"role": "<image>", "content": "?"}, user(picture())),
        "messages",
        "the image placeholder count of the prompt is 2, where 1 would be right",
    ),
    "another scheme": (
        chat(user("a"), user("b", picture("https://localhost/a.png"))),
        "messages[1].content[1]",
        "nothing is ever fetched",
    ),
    "another detail": (
        chat(user(picture(detail="medium"))),
        "messages[0].content[0]",
        "must be auto, high or low",
    ),
    "no image_url": (
        chat(user({"type": "image_url"})),
        "messages[0].content[0]",
        "image_url must be an object with a url",
    ),
    "a prompt that is too long for its words": (
        chat(user(picture(), "x" * 500)),
        "messages",
        "takes prompts of at most 255",
    ),
    "a prompt that is too long for its images": (
        chat(user(*[picture(grey(128, 200, 150), detail="high")] * 4)),
        "messages",
        "takes prompts of at most 255",
    ),
}


@pytest.mark.parametrize(("body", "param", "message"), REFUSED.values(), ids=REFUSED)
@trio_test
async def test_refused_before_anything_is_decoded(body: Body, param: str, message: str) -> None:
    eyes, executor = Eyes(), LookingExecutor()
    async with seeing(eyes, executor=executor, context=256) as server:
        for asked in (body, {**body, "stream": True}):
            status, where, said = told(await ask(server, asked))
            assert (status, where) == (400, param)
            assert message in said
    assert (eyes.decoded, executor.steps) == (0, 0)


@trio_test
async def test_a_text_model_takes_text_only() -> None:
    async with serving(says("ok")) as server:
        answer = await ask(server, chat(user("a"), user("b", picture())))
        assert told(answer) == (400, "messages[1].content[1]", "this model takes text only")
        # To such a model the placeholder is a word.
        assert (await ask(server, chat(user(text("<image>"))))).status_code == 200


# Bodies


def padded(body: Body, size: int) -> bytes:
    """A body of so many bytes, most of them spaces."""
    written = json.dumps(body).encode()
    return written[:-1] + b" " * (size - len(written)) + b"}"


async def send(server: Running, path: str, body: bytes, coding: str | None) -> int:
    headers = {"Content-Type": "application/json"}
    if coding is not None:
        headers["Content-Encoding"] = coding
    answer = await server.client.post(path, content=body, headers=headers)
    return answer.status_code


async def assert_takes(server: Running, most: int) -> None:
    """Every route takes so many bytes, compressed or not, and not one more."""
    bodies: dict[str, Body] = {
        CHAT: chat(user("hi")),
        TEXT: {"model": MODEL, "prompt": "hi"},
        "/v1/systemone": {"model": MODEL, "state": 1, "questions": {}},
        "/debug/replay/chatcmpl-1": {},
    }
    for path, body in bodies.items():
        enough = await send(server, path, json.dumps(body).encode(), None)
        for size, status in ((most, enough), (most + 1, 413)):
            assert await send(server, path, padded(body, size), None) == status, (path, size)
    for coding, compress in (("gzip", gzip.compress), ("zstd", zstd.compress)):
        for size, status in ((most, 200), (most + 1, 413)):
            body_bytes = compress(padded(bodies[CHAT], size))
            assert await send(server, CHAT, body_bytes, coding) == status, (coding, size)


@trio_test
async def test_bodies_may_be_larger_where_a_model_sees() -> None:
    config = ServerConfig(port=0, most_body=MOST_BODY_WITH_IMAGES)
    async with seeing(config=config) as server:
        await assert_takes(server, 32 * MEBIBYTE)


@trio_test
async def test_bodies_of_text_models_keep_their_limit() -> None:
    assert ServerConfig().most_body == MOST_BODY
    async with serving(says("ok")) as server:
        await assert_takes(server, 4 * MEBIBYTE)
