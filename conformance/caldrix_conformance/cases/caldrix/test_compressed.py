"""Compressed bodies of requests: read as plain ones, or refused, and never half read."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_BYTES = 4 * 1024 * 1024
UNKNOWN = "x-no-such-coding"

CODINGS = [
    row("wire.request.gzip", "gzip", gzip.compress),
    row("wire.request.zstd", "zstd", zstd.compress),
]


def post(target: Target, endpoint: Endpoint, coding: str, content: bytes) -> Answer:
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    return target.send("POST", endpoint.path, content=content, headers=headers)


def plain(target: Target, endpoint: Endpoint) -> bytes:
    """A request that is answered."""
    return json.dumps(target.body(endpoint, {"max_tokens": 4})).encode()


def expect_refused(answer: Answer, *statuses: int) -> None:
    wanted = " or ".join(map(str, statuses))
    assert answer.status in statuses, f"wanted {wanted}; {answer.seen}"
    assert answer.error, f"an empty error object; {answer.seen}"


@pytest.mark.parametrize(("coding", "compress"), CODINGS)
def test_compressed(
    target: Target, some_endpoint: Endpoint, coding: str, compress: Callable[[bytes], bytes]
) -> None:
    wanted = target.complete(some_endpoint, max_tokens=4).text
    answer = post(target, some_endpoint, coding, compress(plain(target, some_endpoint)))
    seen = answer.completion(some_endpoint).text
    assert seen == wanted, f"{seen!r} for a compressed request, {wanted!r} for a plain one"


@checks("wire.request.other-coding")
def test_unknown_coding(target: Target, some_endpoint: Endpoint) -> None:
    answer = post(target, some_endpoint, UNKNOWN, plain(target, some_endpoint))
    expect_refused(answer, 400, 415)


@checks("wire.request.compressed-cut")
def test_cut(target: Target, some_endpoint: Endpoint) -> None:
    """What is missing is the last of gzip's own: its content is all there."""
    content = gzip.compress(plain(target, some_endpoint))[:-4]
    expect_refused(post(target, some_endpoint, "gzip", content), 400, 415)


@checks("wire.request.compressed-size")
def test_too_many_bytes(target: Target, some_endpoint: Endpoint) -> None:
    """A 400 or a 415 are for a server that takes no such body of any size."""
    request = plain(target, some_endpoint)
    content = gzip.compress(request + b" " * (MOST_BYTES + 1 - len(request)))
    expect_refused(post(target, some_endpoint, "gzip", content), 400, 413, 415)
    target.complete(some_endpoint)
