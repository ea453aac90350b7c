"""The server as a whole: keys, hosts, several clients at a time, and clients that leave."""

from __future__ import annotations

import json
from contextlib import ExitStack

import pytest

from caldrix_conformance.endpoints import COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.raw import request_bytes
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

FREE_WITHIN = 20.0
"""Seconds; the generation that is left would go on for longer."""


@pytest.mark.parametrize(
    "headers",
    [
        row("server.key.none", {}),
        row("server.key.any", {"Authorization": "Bearer sk-no-key-needed"}),
    ],
)
def test_key(target: Target, some_endpoint: Endpoint, headers: dict[str, str]) -> None:
    body = json.dumps(target.body(some_endpoint, {})).encode()
    headers = {"Content-Type": "application/json", **headers}
    target.send("POST", some_endpoint.path, content=body, headers=headers).expect(200)


@checks("server.host.foreign")
def test_foreign_host(target: Target) -> None:
    answer = target.get("/v1/models", Host="rebound.example")
    assert answer.expect(403).error, f"no error object; {answer.seen}"


@checks("server.requests.concurrent")
def test_concurrent(target: Target) -> None:
    prompts = ("One, two, three,", "Red, green, and", "Dear Sir or Madam,")
    alone = [target.completions(prompt=prompt, max_tokens=4).text for prompt in prompts]
    with ExitStack() as stack:
        connections = [stack.enter_context(target.connection()) for _ in prompts]
        for connection, prompt in zip(connections, prompts, strict=True):
            body = target.body(COMPLETIONS, {"prompt": prompt, "max_tokens": 4})
            request = request_bytes("POST", COMPLETIONS.path, target.host_header, body)
            connection.send(request)
        answers = [connection.answer() for connection in connections]
    for prompt, wanted, answer in zip(prompts, alone, answers, strict=True):
        assert answer.status == 200, f"{prompt!r} beside others got {answer.seen}"
        text = answer.text(COMPLETIONS)
        assert text == wanted, f"{prompt!r} gives {text!r} beside others, {wanted!r} alone"


@checks("server.requests.abandoned")
def test_abandoned(target: Target) -> None:
    endless = {"max_tokens": ABSENT, "ignore_eos": True}
    with target.open_stream(COMPLETIONS, prompt="Hi", **endless) as response:
        assert response.status_code == 200, f"the stream's status is {response.status_code}"
        next(response.iter_lines())
    body = target.body(COMPLETIONS, {"prompt": "Hi"})
    response = target.client.post(COMPLETIONS.path, json=body, timeout=FREE_WITHIN)
    assert response.status_code == 200, f"the next request's status is {response.status_code}"
