"""Faults of text, threads and clients: the documented answer, and the next request is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, NoReturn

import pytest
import trio
from attrs import frozen
from structlog.testing import capture_logs

from caldrix.text.errors import TemplateError, TokenizerRefusal
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer
from tests.support import miniature
from tests.support.faulty import LETTERS, answer_to, faultless
from tests.support.seen import (
    PATIENCE,
    UNFORESEEN,
    ErrorObject,
    Seen,
    ask,
    fields,
    recovering,
    until,
)
from tests.support.serving import MODEL, never_ends, serving, trio_test
from tests.support.wire import TEXT, connected, post, reset, tasks_living

CHAT = "/v1/chat/completions"
Logs = list[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    """What the server logs."""
    with capture_logs() as entries:
        yield entries


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@frozen
class TextFault:
    """Something between text and tokens that raises, and what a client is told."""

    owner: type
    name: str
    error: Exception
    status: int
    told: ErrorObject


BUG = RuntimeError("nobody foresaw this")
REFUSED = {
    "code": None,
    "message": "roles must alternate",
    "param": "messages",
    "type": "invalid_request_error",
}
TEXT_FAULTS = {
    "encode": TextFault(Tokenizer, "encode", BUG, 500, UNFORESEEN),
    "decode": TextFault(Tokenizer, "token_bytes", BUG, 500, UNFORESEEN),
    "decode, foreseen": TextFault(
        Tokenizer, "token_bytes", TokenizerRefusal("it reads and does not write"), 500, UNFORESEEN
    ),
    "template, by its own will": TextFault(
        ChatTemplate, "render", TemplateError("roles must alternate"), 400, REFUSED
    ),
    "template": TextFault(ChatTemplate, "render", OSError("a disk is gone"), 500, UNFORESEEN),
    "memory": TextFault(ChatTemplate, "render", MemoryError(), 500, UNFORESEEN),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", TEXT_FAULTS)
@trio_test
async def test_text_that_fails(name: str, stream: bool, logs: Logs) -> None:
    fault = TEXT_FAULTS[name]
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    executor = faultless()
    async with recovering(executor) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fault.owner, fault.name, raising(fault.error))
            seen = await ask(server, body, CHAT)
    assert seen == Seen(fault.status, error=fault.told)
    # What a client is referred to is there, once.
    expected = [("request_failed", fault.error)] if fault.told == UNFORESEEN else []
    errors = [entry for entry in logs if entry["log_level"] != "info"]
    assert [(entry["event"], entry["exc_info"]) for entry in errors] == expected


@trio_test
async def test_a_token_that_cannot_be_written_ends_a_stream() -> None:
    prompt = [LETTERS[0]]
    written: list[int] = []
    real = Tokenizer.token_bytes

    def fail_later(self: Tokenizer, token: int) -> bytes:
        written.append(token)
        if len(written) > 4:
            raise BUG
        return real(self, token)

    executor = faultless()
    async with recovering(executor) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Tokenizer, "token_bytes", fail_later)
            seen = await ask(server, fields(prompt, stream=True))
    if seen.status == 200:
        # Those that came together with the one at fault may be lost with it.
        assert answer_to(prompt, 4).startswith(seen.text)
    assert seen.error == UNFORESEEN


@trio_test
async def test_a_thread_that_cannot_be_started() -> None:
    # The engine has had its own from the beginning.
    async def fail(*arguments: object, **options: object) -> NoReturn:
        raise RuntimeError("can't start new thread")

    async with recovering(faultless()) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trio.to_thread, "run_sync", fail)
            seen = await ask(server, fields([LETTERS[0]], stream=False))
    assert seen == Seen(500, error=UNFORESEEN)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@trio_test
async def test_a_client_that_vanishes_while_it_is_written_to(stream: bool, logs: Logs) -> None:
    tokens = 256
    executor = never_ends(miniature.LONG)
    body = {"model": MODEL, "prompt": "hi", "stream": stream, "max_tokens": tokens}
    async with serving(executor, context=10**6) as server:
        tasks = tasks_living()
        async with connected(server) as wire:
            await wire.send(post(body))
            await wire.until(b"200")
            # All is computed, and more than the sockets between them hold.
            await until(lambda: executor.steps >= tokens)
            reset(wire)
        await server.wait_rows_free(PATIENCE)
        await until(lambda: tasks_living() <= tasks)
        assert (await server.client.post(TEXT, json={**body, "max_tokens": 1})).is_success
    assert [entry for entry in logs if entry["log_level"] not in {"info", "debug"}] == []
    left, served = [entry for entry in logs if entry["event"] == "request"]
    # A whole answer is taken down before it is sent.
    assert (left["status"], served["status"]) == (499 if stream else 200, 200)
