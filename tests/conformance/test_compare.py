"""Comparing goldens: what counts as the same, and what each difference is told as."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from attrs import evolve
from hypothesis import assume, given
from hypothesis import strategies as st

from caldrix_conformance.answers import Answer
from caldrix_conformance.canonical import canonical_answer, canonical_shape, merge_deltas, told
from caldrix_conformance.capture import (
    ANY_MODEL,
    Capture,
    Count,
    CountTable,
    Kind,
    Tie,
    golden_text,
    read_golden,
)
from caldrix_conformance.compare import Tolerance, first_difference
from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.errors import GoldenError

ROUNDING = Tolerance(0.01, "another order of sums")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


def streamed(pieces: list[str], *, id: str = "a", created: int = 1) -> Answer:
    frame = {"id": id, "created": created, "model": "m", "object": "chat.completion.chunk"}
    choices: list[dict[str, Any]] = [
        {"index": 0, "delta": {"content": piece}, "finish_reason": None, "token_ids": [len(piece)]}
        for piece in pieces
    ]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    events = [json.dumps(frame | {"choices": [choice]}) for choice in choices]
    body = "".join(f"data: {event}\n\n" for event in (*events, "[DONE]"))
    headers = {"content-type": "text/event-stream; charset=utf-8"}
    return Answer("POST", CHAT.path, {"model": "m"}, 200, headers, body.encode())


def answered(body: object) -> Answer:
    headers = {"content-type": "application/json"}
    return Answer("POST", CHAT.path, {"model": "m"}, 200, headers, json.dumps(body).encode())


@given(st.lists(st.text(), min_size=1), st.text(), st.integers())
def test_how_a_text_was_cut_makes_no_difference(
    pieces: list[str], other_id: str, other_time: int
) -> None:
    form = canonical_answer(streamed(pieces, id=other_id, created=other_time))
    first, last = form["chunks"]
    assert first["choices"][0]["delta"] == {"content": "".join(pieces)}
    assert first["choices"][0]["token_ids"] == [len(piece) for piece in pieces]
    assert last["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "stop"}
    assert (first["id"], first["created"]) == ("<id>", "<created>")
    assert form["content_type"] == "text/event-stream"


CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "delta": st.fixed_dictionaries({}, optional={"content": JSON, "token_ids": JSON}) | JSON,
        "text": JSON,
        "token_ids": JSON,
        "finish_reason": JSON,
    },
)
CHUNK = st.fixed_dictionaries(
    {}, optional={"choices": st.lists(CHOICE | JSON, max_size=2) | JSON, "token_ids": JSON}
)


@given(st.lists(CHUNK, max_size=4))
def test_any_chunks_can_be_merged(chunks: list[dict[str, Any]]) -> None:
    """Whatever a target sends is compared, and never trips the suite."""
    merged = merge_deltas(chunks)
    assert len(merged) <= len(chunks)
    assert merge_deltas(merged) == merged


def test_a_shape_holds_types_alone() -> None:
    body = {"b": [1, 2, "x", {"d": None}], "a": {"c": True, "e": 0.5}, "id": "7"}
    assert canonical_shape(answered(body))["body"] == {
        "a": {"c": "boolean", "e": "number"},
        "b": ["integer", "string", {"d": "null"}],
        "id": "string",
    }


def test_guesses_are_no_part_of_an_answer() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    guessed = {"usage": usage | {"speculative": {"proposed": 4, "accepted": 1}}}
    for form in (canonical_answer, canonical_shape):
        assert form(answered(guessed)) == form(answered({"usage": usage}))


@pytest.mark.parametrize(
    ("stored", "seen", "difference"),
    [
        ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "a[1].b is 3, in the golden 2"),
        ({"a": 1}, {}, "a is missing"),
        ({}, {"a": 1}, "a is not in the golden: 1"),
        ({"a": [1]}, {"a": []}, "a has 0 items, in the golden 1"),
        # Python takes true for 1 and 1.0.
        ({"a": 1}, {"a": True}, "a is true, in the golden 1"),
        ({"a": 1}, {"a": 1.0}, "a is 1.0, in the golden 1"),
        ({"a": 0.5}, {"a": 0.5000001}, "a is 0.5000001, in the golden 0.5"),
        ({"a": [1, "x"]}, {"a": [1, "x"]}, None),
    ],
)
def test_first_difference(stored: Any, seen: Any, difference: str | None) -> None:
    assert first_difference(stored, seen) == difference


@pytest.mark.parametrize(
    ("stored", "seen", "difference"),
    [
        ({"p": [0.5]}, {"p": [0.509]}, None),
        ({"p": 0.5}, {"p": 0.511}, "p is 0.511, in the golden 0.5, further off than 0.01"),
        # As JavaScript writes a whole number; but a count is no probability.
        ({"p": 1.0}, {"p": 1}, None),
        ({"p": 1}, {"p": 1.0}, "p is 1.0, in the golden 1"),
        ({"n": 7}, {"n": 8}, "n is 8, in the golden 7"),
        ({"p": 1.0}, {"p": True}, "p is true, in the golden 1.0"),
        ({"p": 0.5}, {"p": math.nan}, "p is NaN, in the golden 0.5, further off than 0.01"),
        ({"p": 0.5}, {"p": math.inf}, "p is Infinity, in the golden 0.5, further off than 0.01"),
        ({"p": "0.5"}, {"p": "0.501"}, 'p is "0.501", in the golden "0.5"'),
    ],
)
def test_floats_have_a_tolerance(stored: Any, seen: Any, difference: str | None) -> None:
    assert first_difference(stored, seen, tolerance=ROUNDING) == difference


@given(JSON, st.none() | st.just(ROUNDING))
def test_a_value_is_equal_to_itself(value: Any, tolerance: Tolerance | None) -> None:
    assert first_difference(value, json.loads(json.dumps(value)), tolerance=tolerance) is None


@given(JSON, JSON)
def test_another_value_is_told(stored: Any, seen: Any) -> None:
    assume(json.dumps(stored, sort_keys=True) != json.dumps(seen, sort_keys=True))
    assert first_difference(stored, seen) or 0.0 in (stored, seen)


@pytest.mark.parametrize(
    ("absolute", "reason"), [(0.0, "why"), (-1.0, "why"), (math.nan, "why"), (0.1, " ")]
)
def test_a_tolerance_has_a_size_and_a_reason(absolute: float, reason: str) -> None:
    with pytest.raises(ValueError, match="a tolerance"):
        Tolerance(absolute, reason)


USAGE = {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11}


def text_capture(text: object = "Hi there", usage: object = USAGE, **members: Any) -> Capture:
    choice = {"index": 0, "text": text, "finish_reason": "stop"} | members
    body = {"model": "m", "choices": [choice], "usage": usage}
    return Capture.of(answered(body), Kind.TEXT, model="m", tie=Tie.FINGERPRINT)


def decision(tolerance: Tolerance | None = ROUNDING, **members: Any) -> Capture:
    body = {"model": "m", "score": 0.5} | members
    return Capture.of(
        answered(body), Kind.TEXT, model="m", tie=Tie.FINGERPRINT, tolerance=tolerance
    )


def test_a_golden_survives_its_file() -> None:
    table = CountTable(
        model="m",
        path="/v1/completions",
        counts={
            "a text": Count(prompt="é", tokens=1),
            "messages": Count(prompt=[{"role": "user", "content": "é"}], tokens=9),
        },
    )
    stream = Capture.of(streamed(["a", "b"]), Kind.TEXT, model="m", tie=Tie.FINGERPRINT)
    for golden in (
        stream,
        evolve(stream, margin=0.25),
        decision(),
        Capture.of(streamed(["a"]), Kind.SHAPE, model="m", tie=Tie.ANY),
        table,
    ):
        assert read_golden(golden_text(golden), "x") == golden
    assert stream.canonical["chunks"][0]["model"] == ANY_MODEL
    assert stream.request.for_model("n").body == {"model": "n"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{}", "can't be read: its kind is missing"),
        ("[]", "it holds no object"),
        ("{", "can't be read"),
        ('{"kind": "poem"}', "'poem' is not a valid Kind"),
        ('{"kind": "count", "model": "m"}', "required field missing"),
        ('{"kind": "count", "model": "m", "path": "/", "counst": {}}', "counst"),
    ],
)
def test_what_is_no_golden_is_told(text: str, complaint: str) -> None:
    with pytest.raises(GoldenError) as caught:
        read_golden(text, "chat/x")
    assert str(caught.value).startswith("the golden chat/x can't be read: ")
    assert complaint in str(caught.value)


def test_a_golden_that_was_tampered_with_is_told() -> None:
    text = golden_text(text_capture())
    assert text.count("Hi there") == 2
    before, between, after = text.split("Hi there")
    with pytest.raises(GoldenError, match="x is not what its own raw answer says: canonical"):
        read_golden(f"{before}Hi there{between}Ho{after}", "x")
    with pytest.raises(GoldenError, match="the raw answer in the golden x was edited"):
        read_golden(f"{before}Ho{between}Hi there{after}", "x")


def test_an_edit_that_no_shape_shows_is_told() -> None:
    golden = Capture.of(streamed(["a", "b"]), Kind.SHAPE, model="m", tie=Tie.ANY)
    edited = golden_text(golden).replace('\\"a\\"', '\\"aa\\"')
    assert edited != golden_text(golden)
    with pytest.raises(GoldenError, match="undo that, or write it anew"):
        read_golden(edited, "x")
    # The answers that a document prints are typed in, and not written by any run.
    printed = edited.replace('"captured"', '"document"')
    with pytest.raises(GoldenError, match="if the document prints it so") as caught:
        read_golden(printed, "x")
    (digest,) = re.findall("[0-9a-f]{64}", str(caught.value))
    mended = read_golden(printed.replace(golden.response.sha256, digest), "x")
    assert isinstance(mended, Capture)
    assert mended.canonical == golden.canonical


def test_raw_answers_and_margins_are_not_compared() -> None:
    stored = decision()
    other = decision(score=0.505)
    assert stored.response != other.response
    assert stored.difference(evolve(other, margin=3.0)) is None
    assert str(stored.difference(decision(score=0.6))).startswith("answer.body.score is 0.6")
    assert str(stored.difference(decision(more=1))) == "answer.body.more is not in the golden: 1"
    assert stored.difference(decision(None)) == (
        'tolerance is null, in the golden {"absolute": 0.01, "reason": "another order of sums"}'
    )
    assert stored.difference(evolve(stored, tie=Tie.NAME)) == "another kind of golden"
    asked = evolve(stored, request=evolve(stored.request, path="/v1/completions"))
    assert stored.difference(asked) == (
        'request.path is "/v1/completions", in the golden "/v1/chat/completions"'
    )


def test_of_a_text_what_it_tells_is_compared() -> None:
    stored = text_capture()
    assert stored.difference(text_capture(logprobs=None, index=7)) is None
    more = USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}
    assert stored.difference(text_capture(usage=more)) is None
    for seen, difference in (
        (text_capture("Hi here"), 'answer.text is "Hi here", in the golden "Hi there"'),
        (text_capture(7), 'answer.text is "", in the golden "Hi there"'),
        (
            text_capture(finish_reason="length"),
            'answer.finish_reason is "length", in the golden "stop"',
        ),
        (text_capture(token_ids=[1]), "answer.token_ids is not in the golden: [1]"),
        (text_capture(usage=None), "answer.usage is missing"),
    ):
        assert stored.difference(seen) == difference
    # Printed answers are compared whole.
    printed, seen = (evolve(each, tie=Tie.NAME) for each in (stored, text_capture(logprobs=None)))
    assert printed.difference(seen) == "answer.body.choices[0].logprobs is not in the golden: null"


@given(st.lists(st.text(), min_size=1), st.lists(st.text(), min_size=1))
def test_a_stream_tells_its_text_however_it_is_cut(first: list[str], second: list[str]) -> None:
    def capture(pieces: list[str]) -> Capture:
        answer = streamed(pieces)
        role = b'data: {"choices": [{"index": 0, "delta": {"role": "assistant"}}]}\n\n'
        answer.body = role * len(pieces) + answer.body.replace(b'"token_ids"', b'"other"')
        return Capture.of(answer, Kind.TEXT, model="m", tie=Tie.FINGERPRINT)

    one, other = capture(first), capture(second)
    assert one.compared["text"] == "".join(first)
    assert one.compared["finish_reason"] == "stop"
    assert (one.difference(other) is None) == ("".join(first) == "".join(second))


@given(st.lists(CHUNK, max_size=4))
def test_whatever_is_streamed_tells_something(chunks: list[dict[str, Any]]) -> None:
    form = {"status": 200, "content_type": "text/event-stream", "chunks": chunks}
    assert told(form)["status"] == 200
    for chunk in chunks:
        assert told({"status": 200, "body": chunk})["status"] == 200


def test_near_tokens_may_change_a_text_but_not_its_frame() -> None:
    stored = text_capture()
    longer = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
    assert stored.loose_difference(text_capture("Hello", longer)) is None
    miscounted = {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10}
    assert stored.loose_difference(text_capture(usage=miscounted)) == (
        "answer.prompt_tokens is 8, in the golden 9"
    )
    assert stored.loose_difference(text_capture(finish_reason=None)) == (
        'answer.types.finish_reason is "null", in the golden "string"'
    )


@pytest.mark.parametrize(
    ("margin", "asserted"), [(None, False), (0.0, False), (0.049, False), (0.05, True), (9, True)]
)
def test_which_texts_are_asserted(margin: float | None, asserted: bool) -> None:
    capture = evolve(text_capture(), margin=margin)
    assert capture.asserts_text is asserted
    # Of those printed in the document no margin is known; they are taken at their word.
    assert evolve(capture, tie=Tie.NAME).asserts_text
    assert evolve(capture, kind=Kind.SHAPE).asserts_text


def test_counts() -> None:
    def table(**tokens: int) -> CountTable:
        counts = {what: Count(prompt=what, tokens=count) for what, count in tokens.items()}
        return CountTable(model="m", path="/v1/completions", counts=counts)

    stored = table(a=1, b=2, c=3)
    assert stored.difference(table(a=1, b=2, c=3)) is None
    assert stored.difference(table(a=1, b=3, c=4)) == (
        'b has 3 prompt tokens, in the golden 2: "b" (1 more differ)'
    )
    assert stored.difference(table(a=1, b=2)) == "c is only in the golden"
    assert table(a=1).difference(stored) == "b is not in the golden"
    other = evolve(stored, counts={**stored.counts, "a": Count(prompt="A", tokens=1)})
    assert stored.difference(other) == "a is another prompt in the golden"
    assert (
        stored.difference(evolve(stored, path="/p"))
        == "/p was asked, for the golden /v1/completions"
    )
