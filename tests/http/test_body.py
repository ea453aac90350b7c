"""Strict JSON: what is refused, with the path of the fault, and that nothing is lost on the way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.body import MAX_DEPTH, SpelledFloat, format_path, parse_object
from caldrix.http.errors import ApiError

JSON = "application/json"

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def refused(body: str | bytes, content_type: str | None = JSON) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_object(content_type, body if isinstance(body, bytes) else body.encode())
    assert caught.value.status == 400
    return caught.value


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_what_json_can_say_arrives_as_it_was_said(value: dict[str, object]) -> None:
    assert parse_object(JSON, json.dumps(value).encode()) == value
    assert parse_object(JSON, json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=40) | st.text('{}[]":,0123456789eE+-.ntrfu\\ \ud800', max_size=40))
def test_any_bytes_are_an_object_or_a_400(body: bytes | str) -> None:
    raw = body if isinstance(body, bytes) else body.encode(errors="surrogatepass")
    try:
        outcome: object = parse_object(JSON, raw)
    except ApiError as error:
        outcome = error
    assert isinstance(outcome, dict) or getattr(outcome, "status", None) == 400


@pytest.mark.parametrize("spelling", ["1.50", "1e-05", "-0.0", "2E+3", "0.1e1"])
def test_a_number_remembers_its_spelling(spelling: str) -> None:
    number = parse_object(JSON, f'{{"n": {spelling}}}'.encode())["n"]
    assert isinstance(number, SpelledFloat)
    assert (number, number.spelling) == (float(spelling), spelling)


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        ('{"a": [1, {"b": Infinity}]}', "Infinity is not a number in JSON", "a[1].b"),
        ('{"a": -Infinity}', "-Infinity is not a number in JSON", "a"),
        ('{"a": 1e999}', "the number is too large for a 64-bit float", "a"),
        (f'{{"a": {"9" * 5000}}}', "the number is too large for a 64-bit float", "a"),
        ('{"a": ["\\ud800"]}', "the string holds half a surrogate pair", "a[0]"),
        ('{"a": {"\\udfff": 1}}', "a key holds half a surrogate pair", "a"),
        ('{"a": 1, "b": 2, "a": 1}', 'the key "a" comes twice', "a"),
        ("null", "the request body must be a JSON object", None),
        ("  \n", "the request body is empty; send a JSON object", None),
        (
            "{'a': 1}",
            "the request body is not JSON: Expecting property name enclosed in double "
            "quotes at line 1, column 2",
            None,
        ),
        ('{"a": 1}\n{', "the request body is not JSON: Extra data at line 2, column 1", None),
        ('{"a": ' * 5000, "the request body is nested more than 64 levels deep", None),
    ],
)
def test_refusals(body: str, message: str, param: str | None) -> None:
    error = refused(body)
    assert (error.message, error.param) == (message, param)


def test_surrogate_pairs_are_one_character() -> None:
    assert parse_object(JSON, b'{"a": "\\ud83d\\ude00"}') == {"a": "\N{GRINNING FACE}"}


def test_depth() -> None:
    def nested(levels: int) -> bytes:
        return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)

    assert parse_object(JSON, nested(MAX_DEPTH))
    assert "nested more than" in refused(nested(MAX_DEPTH + 1)).message


@pytest.mark.parametrize(
    "content_type",
    [JSON, "Application/JSON", "application/json; charset=utf-8", "application/problem+json"],
)
def test_content_types_that_are_json(content_type: str) -> None:
    assert parse_object(content_type, b"{}") == {}


@pytest.mark.parametrize("content_type", ["text/json", "multipart/form-data", "json", "", "é"])
def test_content_types_that_are_not(content_type: str) -> None:
    assert refused("{}", content_type).message == (
        f"Content-Type must be application/json, got {content_type}"
    )


def test_paths() -> None:
    assert format_path(("messages", 1, "content", 0)) == "messages[1].content[0]"
    assert format_path(()) is None
