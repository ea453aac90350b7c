"""The server as a whole: keys, hosts, and several clients at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from caldrix_conformance.answers import Answer, Streamed
from caldrix_conformance.endpoints import COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.raw import RawAnswer, request_bytes
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target


@pytest.mark.parametrize(
    "headers",
    [
        row("server.key.none", {}),
        row("server.key.any", {"Authorization": "Bearer sk-no-key-needed"}),
        row("server.key.any", {"Authorization": "Basic Og=="}),
        row("server.key.any", {"api-key": "x", "OpenAI-Organization": "o", "User-Agent": "u"}),
    ],
)
def test_key(target: Target, some_endpoint: Endpoint, headers: dict[str, str]) -> None:
    body = json.dumps(target.body(some_endpoint, {})).encode()
    headers = {"Content-Type": "application/json", **headers}
    answer = target.send("POST", some_endpoint.path, content=body, headers=headers)
    answer.completion(some_endpoint)


@checks("server.host.foreign")
@pytest.mark.parametrize(
    "host", ["rebound.example", "localhost.rebound.example", "127.0.0.1.rebound.example"]
)
def test_foreign_host(target: Target, host: str) -> None:
    answer = target.get("/v1/models", Host=host)
    assert answer.expect(403).error, f"an empty error object; {answer.seen}"


@checks("server.host.foreign")
def test_foreign_host_asking(target: Target, some_endpoint: Endpoint) -> None:
    body = json.dumps(target.body(some_endpoint, {})).encode()
    headers = {"Content-Type": "application/json", "Host": "rebound.example"}
    target.send("POST", some_endpoint.path, content=body, headers=headers).expect(403)


@checks("server.host.own")
@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "LOCALHOST:8425", "[::1]:8425"])
def test_own_host(target: Target, host: str) -> None:
    target.get("/v1/models", Host=host).expect(200)


def at_once(target: Target, bodies: Sequence[dict[str, Any]]) -> list[RawAnswer]:
    """The answers to requests that are all sent before any is read."""
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connection()) for _ in bodies]
        for connection, body in zip(connections, bodies, strict=True):
            connection.send(request_bytes("POST", COMPLETIONS.path, target.host_header, body))
        return [connection.answer() for connection in connections]


PROMPTS = ("One, two, three,", "Red, green, and", "Dear Sir or Madam,")


@checks("server.requests.concurrent")
def test_concurrent(target: Target) -> None:
    alone = [target.completions(prompt=prompt, max_tokens=4).text for prompt in PROMPTS]
    bodies = [target.body(COMPLETIONS, {"prompt": one, "max_tokens": 4}) for one in PROMPTS]
    answers = at_once(target, bodies)
    for prompt, wanted, answer in zip(PROMPTS, alone, answers, strict=True):
        assert answer.status == 200, f"{prompt!r} beside others got {answer.seen}"
        text = answer.text(COMPLETIONS)
        assert text == wanted, f"{prompt!r} gives {text!r} beside others, {wanted!r} alone"


@checks("server.requests.streams")
def test_two_streams(target: Target) -> None:
    alone = [target.completions(prompt=prompt, max_tokens=8).text for prompt in PROMPTS[:2]]
    fields = {"max_tokens": 8, "stream": True}
    bodies = [target.body(COMPLETIONS, {"prompt": one, **fields}) for one in PROMPTS[:2]]
    for body, wanted, raw in zip(bodies, alone, at_once(target, bodies), strict=True):
        answer = Answer("POST", COMPLETIONS.path, body, raw.status, raw.headers, raw.body)
        stream = Streamed(answer, COMPLETIONS)
        assert stream.text == wanted, f"{stream.text!r} beside another stream, {wanted!r} alone"
        assert stream.events[-1].data == "[DONE]", f"the last event is {stream.events[-1].data!r}"


@checks("server.requests.others")
@pytest.mark.parametrize("path", ["/v1/models", "/healthz"])
def test_other_routes(target: Target, path: str) -> None:
    if target.get(path).status != 200:
        pytest.skip(f"{path} is not answered at other times either")
    endless = {"max_tokens": ABSENT, "ignore_eos": True}
    with target.open_stream(COMPLETIONS, prompt="Hi", **endless) as response:
        assert response.status_code == 200, f"the stream's status is {response.status_code}"
        lines = response.iter_lines()
        next(lines, None)
        target.get(path).expect(200)
        assert next((line for line in lines if line), None), "the stream ended meanwhile"
