"""Clients that leave before they have their answer: the next one need not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from caldrix_conformance.endpoints import COMPLETIONS
from caldrix_conformance.marks import checks
from caldrix_conformance.raw import Connection, request_bytes
from caldrix_conformance.target import ABSENT, Target

FREE_WITHIN = 20.0
"""Seconds; the generation that is left would go on for longer."""
ENDLESS: dict[str, Any] = {"prompt": "Hi", "max_tokens": ABSENT, "ignore_eos": True}
LONG = {**ENDLESS, "prompt": "one two three four five " * 200}


@contextmanager
def asking(target: Target, fields: dict[str, Any]) -> Iterator[Connection]:
    """A connection over which an endless request was sent, and that is then closed."""
    body = target.body(COMPLETIONS, fields)
    with target.connection() as connection:
        connection.send(request_bytes("POST", COMPLETIONS.path, target.host_header, body))
        yield connection


def expect_begun(response: httpx2.Response) -> None:
    """Read up to the first chunk: only what is being made can be left."""
    assert response.status_code == 200, f"the stream's status is {response.status_code}"
    first = next((line for line in response.iter_lines() if line), None)
    begun = first is not None and first.startswith("data:") and "choices" in first
    assert begun, f"no chunk comes, the stream begins with {first!r}"


def expect_free(target: Target) -> None:
    body = target.body(COMPLETIONS, {"prompt": "Hi"})
    response = target.client.post(
        COMPLETIONS.path, json=body, timeout=min(FREE_WITHIN, target.timeout)
    )
    assert response.status_code == 200, f"the next request's status is {response.status_code}"


@checks("server.requests.abandoned")
def test_stream(target: Target) -> None:
    with target.open_stream(COMPLETIONS, **ENDLESS) as response:
        expect_begun(response)
    expect_free(target)


@checks("server.leaving.whole")
def test_whole(target: Target) -> None:
    with asking(target, ENDLESS) as connection:
        early = connection.everything(within=0.5)
    # A quick server may be done by now; one that refuses is not left at all.
    assert not early or b'"choices"' in early, f"no answer is being made: {early[:200]!r}"
    expect_free(target)


@checks("server.leaving.prefill")
@pytest.mark.parametrize("stream", [False, True])
def test_prefill(target: Target, stream: bool) -> None:
    with asking(target, LONG | {"stream": stream}):
        pass
    expect_free(target)
    same = target.ask(COMPLETIONS, prompt=LONG["prompt"])
    if same.status == 400 and same.error.get("param") == "prompt":
        pytest.skip("the context does not hold a prompt long enough to be left")
    same.completion(COMPLETIONS)


@checks("server.leaving.queued")
def test_queued(target: Target) -> None:
    """The first is being answered, the second waits behind it or not; both leave."""
    with target.open_stream(COMPLETIONS, **ENDLESS) as response:
        expect_begun(response)
        with asking(target, ENDLESS):
            pass
    expect_free(target)


@checks("server.leaving.head")
def test_head(target: Target) -> None:
    with target.connection() as connection:
        connection.send(b"POST /v1/completions HTTP/1.1\r\nHost: ")
    expect_free(target)


@checks("server.leaving.body")
def test_body(target: Target) -> None:
    body = target.body(COMPLETIONS, ENDLESS)
    request = request_bytes("POST", COMPLETIONS.path, target.host_header, body)
    with target.connection() as connection:
        connection.send(request[:-5])
    expect_free(target)
