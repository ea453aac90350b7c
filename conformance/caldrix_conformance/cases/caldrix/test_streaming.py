"""Streamed answers on both endpoints: the chunks, and what they say all together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caldrix_conformance.answers import Completion, Streamed
from caldrix_conformance.endpoints import CHAT, Endpoint
from caldrix_conformance.events import parse_events
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.shapes import CHAT_CHUNK, TEXT_CHUNK, expect_shape
from caldrix_conformance.tables import each, on_each
from caldrix_conformance.target import Target

CHUNKS = {"chat": CHAT_CHUNK, "completions": TEXT_CHUNK}


@on_each("streaming.media-type")
def test_media_type(stream: Streamed) -> None:
    seen = stream.answer.expect(200).headers.get("content-type", "")
    assert seen.partition(";")[0].strip() == "text/event-stream", f"content-type is {seen!r}"


@on_each("streaming.framing")
def test_framing(stream: Streamed) -> None:
    body = stream.answer.expect(200).body
    for event in parse_events(body):
        assert event.name == "message", f"an event is named {event.name!r}"
        if event.data != "[DONE]":
            try:
                json.loads(event.data)
            except ValueError:
                raise AssertionError(f"an event's data is not JSON: {event.data!r}") from None
    assert body.startswith(b"data:"), f"the stream begins with {body[:40]!r}"


@on_each("streaming.done")
def test_done(stream: Streamed) -> None:
    done = [event.data == "[DONE]" for event in stream.events]
    assert done.count(True) == 1, f"[DONE] comes {done.count(True)} times"
    assert done[-1], f"the last event is {stream.events[-1].data!r}"


@on_each("streaming.chunk.shape")
def test_shape(stream: Streamed, endpoint: Endpoint) -> None:
    for chunk in stream.chunks:
        expect_shape(chunk, CHUNKS[endpoint.name], "a chunk")


@checks("streaming.chunk.exact")
@captured("streaming/shape-chunks")
def test_exact_shape(golden: Golden, target: Target) -> None:
    golden.shape(target.stream(CHAT, max_tokens=4).answer)


@on_each("streaming.chunk.object")
def test_object(usage_stream: Streamed, endpoint: Endpoint) -> None:
    seen = {str(chunk.get("object")) for chunk in usage_stream.chunks}
    assert seen == {endpoint.chunk_object}, f"object is {sorted(seen)}"


@on_each("streaming.chunk.index")
def test_index(stream: Streamed) -> None:
    seen = [choice.get("index") for choice in stream.choices]
    assert all(type(index) is int and index == 0 for index in seen), f"the indices are {seen}"


@on_each("streaming.chunk.identity")
def test_identity(usage_stream: Streamed, target: Target) -> None:
    for name in ("id", "created", "model"):
        seen = {str(chunk.get(name)) for chunk in usage_stream.chunks}
        assert len(seen) == 1, f"{name} changes within the stream: {sorted(seen)}"
        assert "None" not in seen, f"the chunks have no {name}"
    model = usage_stream.chunks[0]["model"]
    assert model == target.model, f"model is {model!r}"


@on_each("streaming.chunk.id")
def test_id(stream: Streamed, usage_stream: Streamed, endpoint: Endpoint) -> None:
    first, second = (streamed.chunks[0].get("id") for streamed in (stream, usage_stream))
    assert str(first).startswith(endpoint.id_prefix), f"id is {first!r}"
    assert first != second, f"two streams have the id {first!r}"


@checks("streaming.chunk.printed")
@captured("streaming/document-capital-of-france")
def test_printed(golden: Golden) -> None:
    golden.replay()


@on_each("streaming.chunk.as-decoded")
def test_as_decoded(stream: Streamed, whole: Completion) -> None:
    tokens = whole.usage.completion_tokens
    assert tokens > 4, f"an answer of {tokens} tokens shows nothing"
    assert len(stream.pieces) > tokens // 4, f"{tokens} tokens came in {len(stream.pieces)} chunks"


@checks("streaming.chunk.role")
def test_role(chat_stream: Streamed) -> None:
    deltas = [choice.get("delta") for choice in chat_stream.choices]
    roles = [delta["role"] for delta in deltas if isinstance(delta, dict) and "role" in delta]
    assert not roles, f"chunks carry the roles {roles}"
    text = deltas[0].get("content") if isinstance(deltas[0], dict) else None
    assert text, f"the first delta is {deltas[0]!r}"


@on_each("streaming.final.empty")
def test_final_text(stream: Streamed, endpoint: Endpoint) -> None:
    name, wanted = ("delta", {}) if endpoint is CHAT else ("text", "")
    seen = stream.choices[-1].get(name)
    assert seen == wanted, f"the last {name} is {seen!r}"


@on_each("streaming.final.reason")
def test_final_reason(stream: Streamed, whole: Completion) -> None:
    *before, last = stream.finish_reasons
    assert all(reason is None for reason in before), f"finish_reason in the middle: {before}"
    assert last == whole.finish_reason, f"{last!r} streamed, {whole.finish_reason!r} not streamed"


@on_each("streaming.text.same")
def test_same_text(stream: Streamed, whole: Completion) -> None:
    assert stream.text == whole.text, f"{stream.text!r} streamed, {whole.text!r} not streamed"


@on_each("streaming.text.characters")
def test_whole_characters(target: Target, endpoint: Endpoint) -> None:
    prompt = endpoint.prompt("Repeat exactly, nothing else: 🙂🙃😀 naïve 日本語 🙂🙃😀")
    whole = target.complete(endpoint, **prompt, max_tokens=24)
    pieces = target.stream(endpoint, **prompt, max_tokens=24).pieces
    assert "".join(pieces) == whole.text, f"{pieces} streamed, {whole.text!r} not streamed"
    cut = [piece for piece in pieces if "\ufffd" in piece]
    assert not cut or "\ufffd" in whole.text, f"characters are cut: {cut}"


@on_each("streaming.usage.unasked")
def test_usage_unasked(stream: Streamed) -> None:
    with_usage = [chunk for chunk in stream.chunks if "usage" in chunk]
    assert not with_usage, f"usage unasked: {with_usage[0]}"


@on_each("streaming.usage.chunk")
def test_usage_chunk(usage_stream: Streamed) -> None:
    assert len(usage_stream.events) > 1, f"the stream has {len(usage_stream.events)} events"
    last, done = (event.data for event in usage_stream.events[-2:])
    assert done == "[DONE]", f"the last event is {done!r}"
    assert len(usage_stream.usages) == 1, f"{len(usage_stream.usages)} chunks carry usage"
    chunk = usage_stream.chunks[-1]
    assert chunk.get("usage") is not None, f"the chunk before [DONE] has no usage: {last}"
    assert chunk.get("choices") == [], f"the usage chunk's choices are {chunk.get('choices')!r}"


@on_each("streaming.usage.members")
def test_usage_members(usage_stream: Streamed) -> None:
    assert usage_stream.usages, "no chunk carries usage"
    seen = set(usage_stream.usages[-1])
    wanted = {"choices", "created", "id", "model", "object", "usage"}
    assert seen == wanted, f"the usage chunk has the members {sorted(seen)}"


@on_each("streaming.usage.same")
def test_usage_same(usage_stream: Streamed, whole: Completion) -> None:
    assert usage_stream.usage == whole.usage, (
        f"{usage_stream.usage} streamed, {whole.usage} not streamed"
    )


NO_USAGE: dict[str, list[Any]] = {
    "streaming.usage.declined": [{"include_usage": False}],
    "streaming.options.null": [None, {"include_usage": None}],
    "streaming.options.empty": [{}],
    "streaming.options.unnamed": [{"x_no_such_option": True}],
}


@pytest.mark.parametrize(
    ("endpoint", "options"),
    [row for topic, values in NO_USAGE.items() for value in values for row in each(topic, value)],
)
def test_no_usage(target: Target, endpoint: Endpoint, options: object) -> None:
    stream = target.stream(endpoint, stream_options=options)
    assert not stream.usages, f"usage unasked: {stream.usages[0]}"


WHOLE: list[Any] = [
    *each("streaming.field.false", {"stream": False}),
    *each("streaming.field.null", {"stream": None}),
    *each("streaming.options.null", {"stream_options": None}),
]


@pytest.mark.parametrize(("endpoint", "fields"), WHOLE)
def test_not_streamed(target: Target, endpoint: Endpoint, fields: dict[str, Any]) -> None:
    target.complete(endpoint, **fields)


NO_FLAGS: tuple[Any, ...] = ("true", 1, 0, [])
NO_OPTIONS: tuple[Any, ...] = ("usage", 1, [], True)
USAGE = "stream_options.include_usage"
REFUSALS = [
    row
    for rows in (
        *(each("streaming.field.type", {"stream": value}, "stream") for value in NO_FLAGS),
        *(
            each("streaming.options.type", {"stream": True, "stream_options": v}, "stream_options")
            for v in NO_OPTIONS
        ),
        *(
            each(
                "streaming.options.usage-type",
                {"stream": True, "stream_options": {"include_usage": value}},
                USAGE,
            )
            for value in NO_FLAGS
        ),
        each(
            "streaming.options.alone", {"stream_options": {"include_usage": True}}, "stream_options"
        ),
    )
    for row in rows
]


@pytest.mark.parametrize(("endpoint", "fields", "param"), REFUSALS)
def test_refused(target: Target, endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    target.ask(endpoint, **fields).expect_refusal(param)


REFUSABLE: list[dict[str, Any]] = [{"max_tokens": 0}, {"model": "no-such-model"}, {"top_p": 2}]


@on_each("streaming.refusal")
def test_refusal(target: Target, endpoint: Endpoint) -> None:
    # What is refused, and how, is for other clauses.
    refused = [fields for fields in REFUSABLE if target.ask(endpoint, **fields).status >= 400]
    if not refused:
        pytest.skip("the target refuses none of the requests that this case knows")
    for fields in refused:
        whole = target.ask(endpoint, **fields)
        streamed = target.ask(endpoint, stream=True, **fields).expect(whole.status)
        assert streamed.error == whole.error, f"not streamed: {whole.seen}; {streamed.seen}"
        media_type = streamed.headers.get("content-type", "")
        assert media_type.startswith("application/json"), f"content-type is {media_type!r}"
