"""Streamed chat answers: the events, the chunks, and what they say all together."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caldrix_conformance.answers import Completion, Streamed
from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.events import parse_events
from caldrix_conformance.goldens import Goldens, Kind
from caldrix_conformance.marks import checks
from caldrix_conformance.shapes import CHAT_CHUNK, expect_shape
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target


@checks("streaming.media-type")
def test_media_type(chat_stream: Streamed) -> None:
    seen = chat_stream.answer.expect(200).headers.get("content-type", "")
    assert seen.partition(";")[0].strip() == "text/event-stream", f"content-type is {seen!r}"


@checks("streaming.framing")
def test_framing(chat_stream: Streamed) -> None:
    body = chat_stream.answer.expect(200).body
    for event in parse_events(body):
        assert event.name == "message", f"an event is named {event.name!r}"
        if event.data != "[DONE]":
            try:
                json.loads(event.data)
            except ValueError:
                raise AssertionError(f"an event's data is not JSON: {event.data!r}") from None
    assert body.startswith(b"data:"), f"the stream begins with {body[:40]!r}"


@checks("streaming.done")
def test_done(chat_stream: Streamed) -> None:
    done = [event.data == "[DONE]" for event in chat_stream.events]
    assert done.count(True) == 1, f"[DONE] comes {done.count(True)} times"
    assert done[-1], f"the last event is {chat_stream.events[-1].data!r}"


@checks("streaming.chunk.shape")
def test_shape(chat_stream: Streamed) -> None:
    for chunk in chat_stream.chunks:
        expect_shape(chunk, CHAT_CHUNK, "a chunk")


@checks("streaming.chunk.exact")
def test_exact_shape(golden: Goldens, target: Target) -> None:
    golden.check("streaming/shape-chunks", target.stream(CHAT, max_tokens=4).answer, Kind.SHAPE)


@checks("streaming.chunk.object")
def test_object(chat_stream: Streamed) -> None:
    seen = {str(chunk.get("object")) for chunk in chat_stream.chunks}
    assert seen == {"chat.completion.chunk"}, f"object is {sorted(seen)}"


@checks("streaming.chunk.identity")
def test_identity(chat_usage_stream: Streamed, target: Target) -> None:
    for name in ("id", "created", "model"):
        seen = {chunk.get(name) for chunk in chat_usage_stream.chunks}
        assert len(seen) == 1, f"{name} changes within the stream: {seen}"
        assert None not in seen, f"the chunks have no {name}"
    (model,) = {chunk["model"] for chunk in chat_usage_stream.chunks}
    assert model == target.model, f"model is {model!r}"


@checks("streaming.chunk.printed")
def test_printed(golden: Goldens) -> None:
    golden.replay("streaming/document-capital-of-france")


@checks("streaming.chunk.as-decoded")
def test_as_decoded(chat_stream: Streamed, chat_completion: Completion) -> None:
    tokens = chat_completion.usage.completion_tokens
    assert tokens > 4, f"an answer of {tokens} tokens shows nothing"
    assert len(chat_stream.pieces) > tokens // 4, (
        f"{tokens} tokens came in {len(chat_stream.pieces)} chunks"
    )


@checks("streaming.chunk.role")
def test_role(chat_stream: Streamed) -> None:
    roles = [choice["delta"]["role"] for choice in chat_stream.choices if "role" in choice["delta"]]
    assert not roles, f"chunks carry the roles {roles}"


@checks("streaming.final.empty")
def test_final_delta(chat_stream: Streamed) -> None:
    delta = chat_stream.choices[-1].get("delta")
    assert delta == {}, f"the last delta is {delta!r}"


@checks("streaming.final.reason")
def test_final_reason(chat_stream: Streamed, chat_completion: Completion) -> None:
    *before, last = chat_stream.finish_reasons
    assert all(reason is None for reason in before), f"finish_reason in the middle: {before}"
    assert last == chat_completion.finish_reason, (
        f"{last!r} streamed, {chat_completion.finish_reason!r} not streamed"
    )


@checks("streaming.text.same")
def test_same_text(chat_stream: Streamed, chat_completion: Completion) -> None:
    assert chat_stream.text == chat_completion.text, (
        f"{chat_stream.text!r} streamed, {chat_completion.text!r} not streamed"
    )


@checks("streaming.text.characters")
def test_whole_characters(target: Target) -> None:
    prompt = CHAT.prompt("Repeat exactly, nothing else: 🙂🙃😀 naïve 日本語 🙂🙃😀")
    whole = target.chat(**prompt, max_tokens=24)
    pieces = target.stream(CHAT, **prompt, max_tokens=24).pieces
    assert "".join(pieces) == whole.text, f"{pieces} streamed, {whole.text!r} not streamed"
    cut = [piece for piece in pieces if "\ufffd" in piece]
    assert not cut or "\ufffd" in whole.text, f"characters are cut: {cut}"


@checks("streaming.usage.unasked")
def test_usage_unasked(chat_stream: Streamed) -> None:
    with_usage = [chunk for chunk in chat_stream.chunks if "usage" in chunk]
    assert not with_usage, f"usage unasked: {with_usage[0]}"


@checks("streaming.usage.chunk")
def test_usage_chunk(chat_usage_stream: Streamed) -> None:
    *_, last, done = (event.data for event in chat_usage_stream.events)
    assert done == "[DONE]", f"the last event is {done!r}"
    assert len(chat_usage_stream.usages) == 1, f"{len(chat_usage_stream.usages)} chunks carry usage"
    chunk = json.loads(last)
    assert chunk.get("usage") is not None, f"the chunk before [DONE] has no usage: {last}"
    assert chunk.get("choices") == [], f"the usage chunk's choices are {chunk.get('choices')!r}"


@checks("streaming.usage.same")
def test_usage_same(chat_usage_stream: Streamed, chat_completion: Completion) -> None:
    assert chat_usage_stream.usage == chat_completion.usage, (
        f"{chat_usage_stream.usage} streamed, {chat_completion.usage} not streamed"
    )


@checks("streaming.usage.declined")
def test_usage_declined(target: Target) -> None:
    stream = target.stream(CHAT, stream_options={"include_usage": False})
    assert not stream.usages, f"usage though declined: {stream.usages[0]}"


@checks("streaming.field.false")
def test_stream_false(target: Target) -> None:
    target.chat(stream=False)


STREAM_VALUES: tuple[Any, ...] = ("true", 1, [])
OPTIONS: tuple[Any, ...] = ("usage", 1, [])
REFUSALS = [
    *(row("streaming.field.type", {"stream": value}, "stream") for value in STREAM_VALUES),
    *(
        row("streaming.options.type", {"stream": True, "stream_options": value}, "stream_options")
        for value in OPTIONS
    ),
    row("streaming.options.alone", {"stream_options": {"include_usage": True}}, "stream_options"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSALS)
def test_refused(target: Target, fields: dict[str, object], param: str) -> None:
    target.ask(CHAT, **fields).expect_refusal(param)


@checks("streaming.refusal")
def test_refusal(target: Target) -> None:
    answer = target.ask(CHAT, stream=True, max_tokens=0)
    answer.expect_refusal("max_tokens")
    media_type = answer.headers.get("content-type", "")
    assert media_type.startswith("application/json"), f"content-type is {media_type!r}"
