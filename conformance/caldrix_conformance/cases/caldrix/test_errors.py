"""Errors: their object, prompts too long, routes that are not there."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from caldrix_conformance.answers import Answer, numbers_in
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.prompts import TOO_LONG
from caldrix_conformance.raw import request_bytes
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target

HEADERS = {"Content-Type": "application/json"}
TOO_MANY_IDS = 1_500_000
"""More than any context, in a body of 3 MB."""


OBJECTS: dict[str, Callable[[Target, Endpoint], Answer]] = {
    "value": lambda target, endpoint: target.ask(endpoint, top_p=2),
    "type": lambda target, endpoint: target.ask(endpoint, max_tokens="8"),
    "model": lambda target, endpoint: target.ask(endpoint, model="no-such-model"),
    "not-implemented": lambda target, endpoint: target.ask(endpoint, n=2),
    "prompt": lambda target, endpoint: target.ask(endpoint, **{endpoint.prompt_field: ABSENT}),
    "streamed": lambda target, endpoint: target.ask(endpoint, stream=True, top_p=2),
    "not-json": lambda target, endpoint: target.send(
        "POST", endpoint.path, content=b"{", headers=HEADERS
    ),
    "no-object": lambda target, endpoint: target.post(endpoint.path, []),
}
"""Refusals of several kinds, which may come from several layers of a server."""

MEMBERS = {"message", "type", "param", "code"}

kinds = pytest.mark.parametrize("refuse", OBJECTS.values(), ids=OBJECTS.keys())


def refused(answer: Answer) -> Answer:
    """``answer``, which must be a refusal; with which status is for other clauses."""
    assert answer.status >= 400, f"no refusal; {answer.seen}"
    return answer


@checks("errors.object")
@kinds
def test_object(
    target: Target, some_endpoint: Endpoint, refuse: Callable[[Target, Endpoint], Answer]
) -> None:
    refusal = refused(refuse(target, some_endpoint))
    assert refusal.error.keys() >= MEMBERS, f"the error is {refusal.error}"
    assert refusal.error_message.strip(), "the message is empty"


@checks("errors.object.exact")
@kinds
def test_exact_object(
    target: Target, some_endpoint: Endpoint, refuse: Callable[[Target, Endpoint], Answer]
) -> None:
    refusal = refused(refuse(target, some_endpoint))
    assert refusal.object.keys() == {"error"}, f"the body is {refusal.object}"
    assert refusal.error.keys() <= MEMBERS, f"the error is {refusal.error}"


@checks("errors.type")
@kinds
def test_type(
    target: Target, some_endpoint: Endpoint, refuse: Callable[[Target, Endpoint], Answer]
) -> None:
    seen = refused(refuse(target, some_endpoint)).error.get("type")
    assert seen == "invalid_request_error", f"type is {seen!r}"


@checks("errors.code.null")
@kinds
def test_code(
    target: Target, some_endpoint: Endpoint, refuse: Callable[[Target, Endpoint], Answer]
) -> None:
    # That it is there at all is for another clause.
    seen = refused(refuse(target, some_endpoint)).error.get("code")
    assert seen is None, f"code is {seen!r}"


@checks("errors.media-type")
@kinds
def test_media_type(
    target: Target, some_endpoint: Endpoint, refuse: Callable[[Target, Endpoint], Answer]
) -> None:
    seen = refuse(target, some_endpoint).expect(400).media_type
    assert seen == "application/json", f"the media type is {seen!r}"


@checks("errors.param.none")
@pytest.mark.parametrize("kind", ["not-json", "no-object"])
def test_no_param(target: Target, some_endpoint: Endpoint, kind: str) -> None:
    OBJECTS[kind](target, some_endpoint).expect_refusal(None)


@checks("errors.message.short")
def test_long_value(target: Target, some_endpoint: Endpoint) -> None:
    answer = target.ask(some_endpoint, model="x" * 50_000)
    size = len(answer.expect(400).body)
    assert size < 5000, f"a refusal of {size:,} bytes, for a value of 50,000"


@pytest.fixture(scope="session")
def too_long(target: Target) -> Callable[[Endpoint], Answer]:
    """What each endpoint says to a prompt longer than any context, asked once."""

    @cache
    def ask(endpoint: Endpoint) -> Answer:
        return target.ask(endpoint, **long_prompt(target, endpoint))

    return ask


def long_prompt(target: Target, endpoint: Endpoint) -> dict[str, object]:
    """Ids where they are taken: to tokenize as long a text takes seconds."""
    takes_ids = endpoint is COMPLETIONS and Capability.TOKENS in target.capabilities
    return {"prompt": [1] * TOO_MANY_IDS} if takes_ids else endpoint.prompt(TOO_LONG)


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
    message = too_long(COMPLETIONS).expect(400).error_message
    numbers = numbers_in(message)
    assert TOO_MANY_IDS in numbers, f"the prompt's size is not told: {message!r}"
    assert len(numbers) > 1, f"the context's size is not told: {message!r}"


@checks("errors.prompt.streamed")
def test_too_long_a_prompt_to_stream(target: Target, some_endpoint: Endpoint) -> None:
    answer = target.ask(some_endpoint, **long_prompt(target, some_endpoint), stream=True)
    answer.expect_refusal(some_endpoint.prompt_field)


def expect_error(answer: Answer, status: int) -> None:
    assert answer.expect(status).error, f"an empty error object; {answer.seen}"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        row("errors.route.unknown", "GET", "/v1/no-such-route"),
        row("errors.route.unknown", "POST", "/v1/no-such-route"),
        row("errors.route.unknown", "GET", "/"),
        row("errors.route.exact", "GET", "/v1/models/"),
        row("errors.route.exact", "GET", "/V1/models"),
        row("errors.route.anthropic", "POST", "/v1/messages"),
    ],
)
def test_unknown_route(target: Target, method: str, path: str) -> None:
    # As a URL, or a client would take // for the beginning of a host's name.
    content = b"{}" if method == "POST" else None
    expect_error(target.send(method, target.url + path, content=content, headers=HEADERS), 404)


@checks("errors.route.method")
@pytest.mark.parametrize(
    ("method", "path", "takes"),
    [
        ("GET", None, "POST"),
        ("PUT", None, "POST"),
        ("DELETE", None, "POST"),
        ("POST", "/v1/models", "GET"),
        ("POST", "/healthz", "GET"),
    ],
)
def test_wrong_method(
    target: Target, some_endpoint: Endpoint, method: str, path: str | None, takes: str
) -> None:
    content = None if method == "GET" else b"{}"
    answer = target.send(method, path or some_endpoint.path, content=content, headers=HEADERS)
    expect_error(answer, 405)
    allowed = answer.headers.get("allow", "")
    assert takes in allowed, f"the Allow header is {allowed!r}"


@checks("errors.after.answers")
def test_connection_after_refusal(target: Target, some_endpoint: Endpoint) -> None:
    host = target.host_header
    refused = target.body(some_endpoint, {"top_p": 2})
    with target.connection() as connection:
        connection.send(request_bytes("POST", some_endpoint.path, host, refused))
        first = connection.answer()
        # With which status it refuses is for other clauses.
        assert first.status >= 400, f"top_p 2 is not refused: {first.seen}"
        if first.closes:
            return
        connection.send(request_bytes("GET", "/v1/models", host))
        second = connection.answer()
    assert second.status == 200, f"wanted 200 on the same connection, got {second.seen}"
