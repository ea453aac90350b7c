"""Completions: the answer, the prompt's forms, and streams."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.answers import Answer, Completion, Streamed
from caldrix_conformance.endpoints import COMPLETIONS
from caldrix_conformance.goldens import Goldens, Kind
from caldrix_conformance.marks import checks
from caldrix_conformance.shapes import TEXT_ANSWER, TEXT_CHUNK, expect_shape
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, Target

COUNTING = "One, two, three,"
"""What every model goes on with, so that some text is there to be seen."""
BEYOND_ANY_VOCABULARY = 2**31 - 1


@checks("completions.response.shape")
def test_shape(text_answer: Answer) -> None:
    expect_shape(text_answer.expect(200).object, TEXT_ANSWER)


@checks("completions.response.exact")
def test_exact_shape(golden: Goldens, target: Target) -> None:
    answer = target.ask(COMPLETIONS, prompt=COUNTING, max_tokens=4)
    golden.check("completions/shape-answer", answer, Kind.SHAPE)


@checks("completions.response.object")
def test_object(text_completion: Completion) -> None:
    seen = text_completion.body.get("object")
    assert seen == "text_completion", f"object is {seen!r}"


@checks("completions.response.id")
def test_id(text_completion: Completion, target: Target) -> None:
    first, second = text_completion.body.get("id"), target.completions().body.get("id")
    assert str(first).startswith("cmpl-"), f"id is {first!r}"
    assert first != second, f"two answers have the id {first!r}"


@checks("completions.response.choice")
def test_choice(text_completion: Completion) -> None:
    (choice,) = text_completion.body["choices"]
    assert choice.get("index") == 0, f"index is {choice.get('index')!r}"


@checks("completions.response.continues")
def test_continues(target: Target) -> None:
    prompt = "Seven times seven is forty-nine, and eight times eight is"
    text = target.completions(prompt=prompt, max_tokens=4).text
    assert prompt not in text, f"the prompt is returned: {text!r}"


@checks("completions.response.printed")
def test_printed(golden: Goldens) -> None:
    golden.replay("completions/document-capital-of-france")


@checks("completions.response.text")
def test_text(golden: Goldens, target: Target) -> None:
    answer = target.ask(COMPLETIONS, prompt="1, 2, 3, 4, 5,", max_tokens=8)
    golden.check("completions/text-counting", answer, Kind.TEXT)


@checks("completions.usage")
def test_usage(target: Target) -> None:
    usage = target.completions(prompt="Hi", max_tokens=3).usage
    assert usage.completion_tokens == 3, f"{usage} for a cap of 3"
    assert 1 <= usage.prompt_tokens <= 4, f"{usage} for the prompt 'Hi'"
    assert usage.total_tokens == usage.prompt_tokens + 3, f"{usage}"


REFUSALS: list[Any] = [
    row("completions.prompt.required", {"prompt": ABSENT}),
    row("completions.prompt.required", {"prompt": None}),
    row("completions.prompt.type", {"prompt": 7}),
    row("completions.prompt.type", {"prompt": {"text": "Hi"}}),
    row("completions.prompt.empty", {"prompt": ""}),
    row("completions.prompt.empty", {"prompt": []}),
    row("completions.prompt.batch", {"prompt": ["Hi", "Ho"]}),
    row("completions.prompt.batch", {"prompt": [[1, 2], [3]]}),
    row("completions.prompt.id-type", {"prompt": [1, 2.5]}),
    row("completions.prompt.id-type", {"prompt": [1, True]}),
    row("completions.prompt.id-type", {"prompt": [1, "2"]}),
    row("completions.prompt.id-type", {"prompt": [1, None]}),
]


@pytest.mark.parametrize("fields", REFUSALS)
def test_refused(target: Target, fields: dict[str, object]) -> None:
    target.ask(COMPLETIONS, **fields).expect_refusal("prompt", within=True)


@checks("completions.prompt.id-range")
@pytest.mark.parametrize("token_id", [BEYOND_ANY_VOCABULARY, -1])
def test_id_range(target: Target, token_id: int) -> None:
    target.ask(COMPLETIONS, prompt=[1, token_id]).expect_refusal("prompt[1]")


@pytest.fixture(scope="session")
def some_ids(target: Target) -> list[int]:
    """Token ids of an ordinary text: those of an answer."""
    answer = target.completions(prompt=COUNTING, max_tokens=5, return_token_ids=True)
    assert answer.token_ids, f"no token_ids: {answer.body}"
    return list(answer.token_ids)


@checks("completions.prompt.ids")
def test_ids(target: Target, some_ids: list[int]) -> None:
    usage = target.completions(prompt=some_ids).usage
    assert usage.prompt_tokens == len(some_ids), f"{usage} for {len(some_ids)} ids"


@checks("completions.prompt.ids-continue")
def test_ids_continue(target: Target, some_ids: list[int]) -> None:
    first = target.completions(prompt=some_ids, max_tokens=4, return_token_ids=True).token_ids
    assert first, "no token_ids"
    longer = [*some_ids, first[0]]
    second = target.completions(prompt=longer, max_tokens=3, return_token_ids=True).token_ids
    assert second == first[1:], f"{first}, and one token later {second}"


@checks("completions.messages.refused")
def test_messages_refused(target: Target) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    target.ask(COMPLETIONS, messages=messages).expect_refusal("messages")


# A turn of the commonest chat format, which a model that knows it ends after a few words.
A_TURN = "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"


@checks("completions.ignore-eos.runs-on")
def test_ignore_eos(target: Target) -> None:
    answer = target.completions(prompt=A_TURN, max_tokens=40, ignore_eos=True)
    assert answer.usage.completion_tokens == 40, f"{answer.usage} for a cap of 40"
    assert answer.finish_reason == "length", f"finish_reason is {answer.finish_reason!r}"


@checks("completions.ignore-eos.type")
@pytest.mark.parametrize("value", ["true", 1, []])
def test_ignore_eos_type(target: Target, value: object) -> None:
    target.ask(COMPLETIONS, ignore_eos=value).expect_refusal("ignore_eos")


@checks("completions.streaming.framing")
def test_framing(text_stream: Streamed) -> None:
    media_type = text_stream.answer.expect(200).headers.get("content-type", "")
    assert media_type.startswith("text/event-stream"), f"content-type is {media_type!r}"
    last = text_stream.events[-1].data
    assert last == "[DONE]", f"the last event is {last!r}"


@checks("completions.streaming.chunk")
def test_chunk(text_stream: Streamed) -> None:
    for chunk in text_stream.chunks:
        expect_shape(chunk, TEXT_CHUNK, "a chunk")
    seen = {str(chunk.get("object")) for chunk in text_stream.chunks}
    assert seen == {"text_completion"}, f"object is {sorted(seen)}"


@checks("completions.streaming.exact")
def test_exact_chunk(golden: Goldens, target: Target) -> None:
    stream = target.stream(COMPLETIONS, prompt=COUNTING, max_tokens=4)
    golden.check("completions/shape-chunks", stream.answer, Kind.SHAPE)


@checks("completions.streaming.text")
def test_streamed_text(text_stream: Streamed, text_completion: Completion) -> None:
    seen = (text_stream.text, text_stream.finish_reason)
    wanted = (text_completion.text, text_completion.finish_reason)
    assert seen == wanted, f"{seen} streamed, {wanted} not streamed"


@checks("completions.streaming.usage")
def test_streamed_usage(target: Target, text_stream: Streamed) -> None:
    assert not text_stream.usages, f"usage unasked: {text_stream.usages[0]}"
    options = {"include_usage": True}
    stream = target.stream(COMPLETIONS, max_tokens=2, stream_options=options)
    assert stream.usage == target.completions(max_tokens=2).usage, f"{stream.usage} streamed"
    assert stream.chunks[-1].get("choices") == [], f"the last chunk is {stream.chunks[-1]}"
