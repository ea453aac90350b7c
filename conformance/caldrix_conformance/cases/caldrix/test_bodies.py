"""Bodies of requests: what is no JSON, what JSON may look like, and how large it may be."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import both_endpoints, row
from caldrix_conformance.target import ABSENT, Target

HEADERS = {"Content-Type": "application/json"}
MOST_BYTES = 4 * 1024 * 1024


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
    row("errors.body.object", b"null"),
    row("errors.body.object", b"7"),
    row("errors.body.object", b"true"),
    row("errors.body.object", b'[{"model": "a"}]'),
    row("errors.body.empty", b"  \n"),
]
BROKEN_TEXTS = [
    row("errors.body.json", b'"a"}}'),
    row("errors.body.json", b'"a",'),
    row("errors.body.json", b"'a'"),
    row("errors.body.json", b'"a\nb"'),
    row("errors.body.json", b"01"),
    row("errors.body.json", b"1."),
    row("errors.body.json", b'"a" /* a comment */'),
    row("errors.body.json", b'"a"} {"b": 1'),
    row("errors.body.utf8", b'"\xff\xfe"'),
    row("errors.body.surrogate", rb'"x", "stop": "\ud83d"'),
    row("errors.body.constants", b'"x", "temperature": NaN'),
    row("errors.body.constants", b'"x", "temperature": Infinity'),
    row("errors.body.constants", b"NaN"),
    row("errors.body.constants", b"[-Infinity]"),
    row("errors.body.duplicate", b'"x", "max_tokens": 2'),
    row("errors.body.duplicate", b'{"a": 1, "a": 1}'),
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
    answer = target.send("POST", some_endpoint.path, content=body, headers=HEADERS)
    answer.completion(some_endpoint)


@checks("errors.size.over")
@both_endpoints
def test_too_many_bytes(target: Target, endpoint: Endpoint) -> None:
    body = of_size(target, endpoint, MOST_BYTES + 1)
    answer = target.send("POST", endpoint.path, content=body, headers=HEADERS)
    assert answer.expect(413).error, f"an empty error object; {answer.seen}"


@checks("errors.size.chunked")
def test_too_many_chunks(target: Target, some_endpoint: Endpoint) -> None:
    body = in_chunks(of_size(target, some_endpoint, MOST_BYTES + 1))
    answer = target.send("POST", some_endpoint.path, content=body, headers=HEADERS)
    assert answer.expect(413).error, f"an empty error object; {answer.seen}"


@checks("errors.size.after")
def test_after_too_many_bytes(target: Target, some_endpoint: Endpoint) -> None:
    body = of_size(target, some_endpoint, MOST_BYTES + 1)
    target.send("POST", some_endpoint.path, content=body, headers=HEADERS)
    target.complete(some_endpoint)


@pytest.mark.parametrize(
    "media_type",
    [
        row("errors.body.json-types", "application/json"),
        row("errors.body.json-types", "application/json; charset=utf-8"),
        row("errors.body.json-types", "Application/JSON"),
    ],
)
def test_json_types(target: Target, some_endpoint: Endpoint, media_type: str) -> None:
    content = with_text(target, some_endpoint, b'"x"')
    headers = {"Content-Type": media_type}
    answer = target.send("POST", some_endpoint.path, content=content, headers=headers)
    answer.completion(some_endpoint)


@checks("errors.body.spelling")
@both_endpoints
def test_spelling(target: Target, endpoint: Endpoint) -> None:
    """The same JSON: with escapes and raw, with spaces and without, its members in any order."""
    value = target.body(
        endpoint, {**endpoint.prompt("Grüße, 🙂, and\ttea/coffee"), "max_tokens": 4}
    )
    backwards = {name: value[name] for name in reversed(value)}
    spellings = (
        json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        json.dumps(value, ensure_ascii=True, indent=2).replace("/", "\\/"),
        "\r\n\t " + json.dumps(backwards, ensure_ascii=False) + " \n",
    )
    answers = [
        target.send("POST", endpoint.path, content=text.encode(), headers=HEADERS)
        for text in spellings
    ]
    first, *others = (answer.completion(endpoint) for answer in answers)
    for other in others:
        seen, wanted = ((one.text, one.usage.prompt_tokens) for one in (other, first))
        assert seen == wanted, f"{seen} for another spelling of a request, {wanted} for the first"
