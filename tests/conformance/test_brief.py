"""The one line that says what was seen: short, and with what matters of request and answer."""

from __future__ import annotations

import json

import pytest

from caldrix_conformance.brief import answered, asked
from caldrix_conformance.target import ABSENT


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, ""),
        ({"max_tokens": 0, "stream": True}, " with max_tokens 0, stream true"),
        ({"model": ABSENT}, " without model"),
        ({"stop": "é", "model": ABSENT}, ' with stop "é" without model'),
        ({"prompt": "x" * 100}, f' with prompt "{"x" * 47}…'),
    ],
)
def test_asked(fields: dict[str, object], told: str) -> None:
    assert asked(fields, ABSENT) == told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "500 with an empty body"),
        (b"Internal Server Error", "500: 'Internal Server Error'"),
        (b"\xff", "500: '\N{REPLACEMENT CHARACTER}'"),
        (b'{"error": {"message": "no\\n  more"}}', "500 saying 'no more'"),
        (b'{"error": {"message": 7}}', '500: {"error": {"message": 7}}'),
        (b'{"id": "a", "created": 1, "choices": []}', '500: {"choices": []}'),
        (b"[]", "500: '[]'"),
        (b"[" * 50_000, f"500: '{'[' * 160}…'"),
        (json.dumps({"a": "x" * 1_000_000}).encode(), f'500: \'{{"a": "{"x" * 153}…\''),
    ],
)
def test_answered(body: bytes, told: str) -> None:
    assert answered(500, body) == told
