"""What a client sees of a server with a fault, and whether the server is well after it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import trio
from attrs import frozen

from tests.support.faulty import LETTERS, answer_to
from tests.support.scripted import ScriptedExecutor
from tests.support.serving import MODEL, Running, serving
from tests.support.wire import TEXT, tasks_living

ANSWER_TOKENS = 12
PATIENCE = 15.0
ErrorObject = dict[str, str | None]
FAILED: ErrorObject = {
    "code": None,
    "message": "the engine failed during the request",
    "param": None,
    "type": "server_error",
}
UNFORESEEN = {**FAILED, "message": "the server failed on this request; its log says why"}
UNAVAILABLE = {**FAILED, "message": "the engine is unavailable"}


@frozen
class Seen:
    """What a client saw of an answer: its status, its text, and the error that ended it."""

    status: int
    text: str = ""
    error: ErrorObject | None = None


async def ask(server: Running, body: dict[str, Any], path: str = TEXT) -> Seen:
    """Asks on a connection of its own."""
    async with httpx2.AsyncClient(base_url=server.url, trust_env=False, timeout=30) as client:
        response = await client.post(path, json=body)
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/json"
        return Seen(response.status_code, error=response.json()["error"])
    if not body.get("stream"):
        return Seen(200, response.json()["choices"][0]["text"])
    *events, last, nothing = response.text.split("\n\n")
    assert nothing == ""
    chunks = [json.loads(event.removeprefix("data: ")) for event in events if event[:1] != ":"]
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    if last == "data: [DONE]":
        return Seen(200, text)
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)
    return Seen(200, text, json.loads(last.removeprefix("data: "))["error"])


def fields(prompt: list[int], *, stream: bool) -> dict[str, Any]:
    """A request for a text completion."""
    return {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "stream": stream}


async def until(condition: Callable[[], bool]) -> None:
    """Returns once it is so; an error if that does not come to be."""
    with trio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110  # nothing tells
            await trio.sleep(0.002)


async def assert_well(server: Running, tasks: int) -> None:
    """The next requests are served, and then nothing is left of any."""
    prompt = [LETTERS[0]]
    for stream in (False, True):
        assert await ask(server, fields(prompt, stream=stream)) == Seen(
            200, answer_to(prompt, ANSWER_TOKENS)
        )
    await server.wait_rows_free(PATIENCE)
    assert server.service.engine.kv_cache_usage == 0
    await until(lambda: tasks_living() <= tasks)


@asynccontextmanager
async def recovering(executor: ScriptedExecutor, *, rows: int = 1) -> AsyncIterator[Running]:
    """A server that is well when the block's faults are over."""
    async with serving(executor, context=10**6, rows=rows) as server:
        tasks = tasks_living()
        yield server
        await assert_well(server, tasks)
