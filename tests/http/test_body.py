"""Strict JSON: what is refused, with the path of the fault, and that nothing is lost on the way."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.http.body import MAX_DEPTH, LongInteger, SpelledFloat, format_path, parse_object
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
        ('{"a": ["\\ud800"]}', "the string holds half a surrogate pair", "a[0]"),
        ('{"a": {"\\udfff": 1}}', "a key holds half a surrogate pair", "a"),
        ('{"a": 1, "b": 2, "a": 1}', 'the key "a" comes twice', "a"),
        ("null", "the request body must be a JSON object", None),
        ("  \n", "the request body is empty; send a JSON object", None),
        ('{"a": ' * 5000, "the request body is nested more than 64 levels deep", None),
    ],
)
def test_refusals(body: str, message: str, param: str | None) -> None:
    error = refused(body)
    assert (error.message, error.param) == (message, param)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("{'a': 1}", "a key in double quotes is missing at line 1, column 2"),
        ('{"a" 1}', "a colon is missing at line 1, column 6"),
        ('{"a": }', "a value is missing at line 1, column 7"),
        ('{"a": 1\n "b": 2}', "a comma is missing at line 2, column 2"),
        ('{"a": "b', "a string that does not end, begun at line 1, column 7"),
        ('{"a": "\t"}', "a control character in a string at line 1, column 8"),
        ('{"a": "\\q"}', "a backslash that escapes nothing at line 1, column 8"),
        ('{"a": "\\u12g4"}', "a \\u without four hexadecimal digits at line 1, column 9"),
        ('{"a": 1}\n{', "more after the object's end at line 2, column 1"),
        ('\ufeff{"a": 1}', "it begins with a byte order mark"),
    ],
)
def test_what_is_not_json(body: str, problem: str) -> None:
    assert refused(body).message == f"the request body is not JSON: {problem}"


def test_a_comma_with_nothing_after_it() -> None:
    # Newer Pythons have a message of its own for it.
    for body in ('{"a": 1,}', '{"a": [1,]}'):
        problem = refused(body).message.removeprefix("the request body is not JSON: ")
        assert problem.startswith(("a comma with nothing", "a key in double", "a value is missing"))


def test_integers_are_whole_up_to_pythons_limit() -> None:
    body = parse_object(JSON, f'{{"a": -{"9" * 4300}, "b": -{"9" * 4301}}}'.encode())
    assert body["a"] == 1 - 10**4300
    assert isinstance(body["b"], LongInteger)
    assert (body["b"], body["b"].spelling) == (-math.inf, "-" + "9" * 4301)


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
