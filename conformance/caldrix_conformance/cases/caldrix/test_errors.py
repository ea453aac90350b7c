"""Errors: their object, and what of a request's bytes and size brings one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.raw import request_bytes
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target

HEADERS = {"Content-Type": "application/json"}
MOST_BYTES = 4 * 1024 * 1024
TOO_MANY_IDS = 1_500_000
"""More than any context, in a body of 3 MB."""
TOO_LONG = "a b c d e " * 300_000


@pytest.fixture(scope="session")
def refusal(target: Target, some_endpoint: Endpoint) -> Answer:
    """An ordinary refusal."""
    return target.ask(some_endpoint, top_p=2)


@checks("errors.object")
def test_object(refusal: Answer) -> None:
    assert set(refusal.object) == {"error"}, f"the body is {refusal.object}"
    members = {"message", "type", "param", "code"}
    assert set(refusal.error) == members, f"the error is {refusal.error}"
    message = refusal.error["message"]
    assert isinstance(message, str), f"the message is {message!r}"
    assert message, "the message is empty"


@checks("errors.type")
def test_type(refusal: Answer) -> None:
    seen = refusal.error.get("type"), refusal.error.get("code")
    assert seen == ("invalid_request_error", None), f"type and code are {seen}"


@checks("errors.media-type")
def test_media_type(refusal: Answer) -> None:
    seen = refusal.headers.get("content-type", "")
    assert seen.partition(";")[0].strip() == "application/json", f"content-type is {seen!r}"


def with_text(target: Target, endpoint: Endpoint, text: bytes) -> bytes:
    """A request that would be answered but for ``text``, which stands where a value does."""
    body = json.dumps(target.body(endpoint, {"temperature": ABSENT})).encode()
    return body.removesuffix(b"}") + b', "user": %b}' % text


NESTED = b"[" * 100_000 + b"]" * 100_000

NO_OBJECTS = [
    row("errors.body.json", b"{not json"),
    row("errors.body.empty", b""),
    row("errors.body.object", b"[]"),
    row("errors.body.object", b'"Hi"'),
]
BROKEN_TEXTS = [
    row("errors.body.json", b'"a"}}'),
    row("errors.body.json", b'"a",'),
    row("errors.body.utf8", b'"\xff\xfe"'),
    row("errors.body.surrogate", rb'"x", "stop": "\ud83d"'),
    row("errors.body.constants", b'"x", "temperature": NaN'),
    row("errors.body.constants", b'"x", "temperature": Infinity'),
    row("errors.body.duplicate", b'"x", "max_tokens": 2'),
    row("errors.body.nested", NESTED),
]


def expect_refused(target: Target, endpoint: Endpoint, body: bytes) -> None:
    answer = target.send("POST", endpoint.path, content=body, headers=HEADERS)
    assert answer.expect(400).error, f"an empty error object; {answer.seen}"
    target.get("/v1/models").expect(200)


@pytest.mark.parametrize("body", NO_OBJECTS)
def test_no_object(target: Target, some_endpoint: Endpoint, body: bytes) -> None:
    expect_refused(target, some_endpoint, body)


@pytest.mark.parametrize("text", BROKEN_TEXTS)
def test_broken_text(target: Target, some_endpoint: Endpoint, text: bytes) -> None:
    expect_refused(target, some_endpoint, with_text(target, some_endpoint, text))


@checks("errors.body.media-type")
@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_body_media_type(target: Target, some_endpoint: Endpoint, media_type: str) -> None:
    headers = {"Content-Type": media_type}
    content = with_text(target, some_endpoint, b'"x"')
    answer = target.send("POST", some_endpoint.path, content=content, headers=headers)
    assert answer.status in (400, 415), f"wanted 400 or 415; {answer.seen}"
    assert answer.error, f"no error object; {answer.seen}"


def of_size(target: Target, endpoint: Endpoint, size: int) -> bytes:
    """A request of that many bytes that would be answered but for its size."""
    padding = size - len(with_text(target, endpoint, b'""'))
    return with_text(target, endpoint, b'"%b"' % (b"x" * padding))


def in_chunks(body: bytes) -> Iterator[bytes]:
    """``body`` piece by piece, which sends it without a Content-Length."""
    for start in range(0, len(body), 65536):
        yield body[start : start + 65536]


@checks("errors.size.most")
def test_most_bytes(target: Target, some_endpoint: Endpoint) -> None:
    body = of_size(target, some_endpoint, MOST_BYTES)
    target.send("POST", some_endpoint.path, content=body, headers=HEADERS).expect(200)


@checks("errors.size.over")
def test_too_many_bytes(target: Target, some_endpoint: Endpoint) -> None:
    body = of_size(target, some_endpoint, MOST_BYTES + 1)
    answer = target.send("POST", some_endpoint.path, content=body, headers=HEADERS)
    assert answer.expect(413).error, f"no error object; {answer.seen}"


@checks("errors.size.chunked")
def test_too_many_chunks(target: Target, some_endpoint: Endpoint) -> None:
    body = in_chunks(of_size(target, some_endpoint, MOST_BYTES + 1))
    answer = target.send("POST", some_endpoint.path, content=body, headers=HEADERS)
    assert answer.expect(413).error, f"no error object; {answer.seen}"


@pytest.fixture(scope="session")
def too_long(target: Target) -> Callable[[Endpoint], Answer]:
    """What each endpoint says to a prompt longer than any context, asked once."""

    @cache
    def ask(endpoint: Endpoint) -> Answer:
        takes_ids = endpoint is COMPLETIONS and Capability.TOKENS in target.capabilities
        ids = {"prompt": [1] * TOO_MANY_IDS}
        return target.ask(endpoint, **(ids if takes_ids else endpoint.prompt(TOO_LONG)))

    return ask


@checks("errors.prompt.too-long")
@both_endpoints
def test_too_long(too_long: Callable[[Endpoint], Answer], endpoint: Endpoint) -> None:
    too_long(endpoint).expect(400)


@checks("errors.prompt.param")
@both_endpoints
def test_param(too_long: Callable[[Endpoint], Answer], endpoint: Endpoint) -> None:
    too_long(endpoint).expect_refusal(endpoint.prompt_field)


@checks("errors.prompt.sizes")
def test_sizes(too_long: Callable[[Endpoint], Answer]) -> None:
    message = str(too_long(COMPLETIONS).expect(400).error.get("message"))
    numbers = {int(digits) for digits in re.findall(r"\d+", message.replace(",", ""))}
    assert TOO_MANY_IDS in numbers, f"the prompt's size is not told: {message!r}"
    assert len(numbers) > 1, f"the context's size is not told: {message!r}"


@checks("errors.route.unknown")
def test_unknown_route(target: Target) -> None:
    answer = target.get("/v1/no-such-route")
    assert answer.expect(404).error, f"no error object; {answer.seen}"


@checks("errors.route.method")
def test_wrong_method(target: Target, some_endpoint: Endpoint) -> None:
    answer = target.get(some_endpoint.path)
    assert answer.expect(405).error, f"no error object; {answer.seen}"
    allowed = answer.headers.get("allow", "")
    assert "POST" in allowed, f"the Allow header is {allowed!r}"


@checks("errors.after.answers")
def test_connection_after_refusal(target: Target, some_endpoint: Endpoint) -> None:
    host = target.host_header
    refused = target.body(some_endpoint, {"top_p": 2})
    with target.connection() as connection:
        connection.send(request_bytes("POST", some_endpoint.path, host, refused))
        first = connection.answer()
        assert first.status == 400, f"wanted 400, got {first.seen}"
        connection.send(request_bytes("GET", "/v1/models", host))
        second = connection.answer()
    assert second.status == 200, f"wanted 200 on the same connection, got {second.seen}"
