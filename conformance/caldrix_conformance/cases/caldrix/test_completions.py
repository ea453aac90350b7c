"""Completions: the answer, the prompt's forms, and streams."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.answers import Answer, Completion
from caldrix_conformance.endpoints import COMPLETIONS
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.shapes import TEXT_ANSWER, expect_shape
from caldrix_conformance.tables import row
from caldrix_conformance.target import ABSENT, QUESTION, Target

COUNTING = "One, two, three,"
"""What every model goes on with, so that some text is there to be seen."""
BEYOND_ANY_VOCABULARY = 2**31 - 1


@checks("completions.response.shape")
def test_shape(text_answer: Answer) -> None:
    expect_shape(text_answer.expect(200).object, TEXT_ANSWER)


@checks("completions.response.exact")
@captured("completions/shape-answer")
def test_exact_shape(golden: Golden, target: Target) -> None:
    answer = target.ask(COMPLETIONS, prompt=COUNTING, max_tokens=4)
    golden.shape(answer)


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
    index = choice.get("index")
    assert (type(index), index) == (int, 0), f"index is {index!r}"


@checks("completions.response.created")
def test_created(text_completion: Completion) -> None:
    created = text_completion.body.get("created")
    assert type(created) is int, f"created is {created!r}"
    assert 1_500_000_000 < created < 10_000_000_000, f"created is {created}, no time in seconds"


@checks("completions.response.model")
def test_model(text_completion: Completion, target: Target) -> None:
    seen = text_completion.body.get("model")
    assert seen == target.model, f"model is {seen!r}, not {target.model!r}"


@checks("completions.response.continues")
def test_continues(target: Target) -> None:
    prompt = "Seven times seven is forty-nine, and eight times eight is"
    text = target.completions(prompt=prompt, max_tokens=4).text
    assert prompt not in text, f"the prompt is returned: {text!r}"


@checks("completions.response.printed")
@captured("completions/document-capital-of-france")
def test_printed(golden: Golden) -> None:
    golden.replay()


@checks("completions.usage")
def test_usage(target: Target) -> None:
    usage = target.completions(prompt="Hi", max_tokens=3).usage
    assert usage.completion_tokens == 3, f"{usage} for a cap of 3"
    assert 1 <= usage.prompt_tokens <= 4, f"{usage} for the prompt 'Hi'"
    assert usage.total_tokens == usage.prompt_tokens + 3, f"{usage}"


REFUSALS: list[Any] = [
    row("completions.prompt.required", {"prompt": ABSENT}),
    row("completions.prompt.required", {"prompt": None}),
    row("completions.prompt.required", {"prompt": ABSENT, "stream": True}),
    row("completions.prompt.type", {"prompt": 7}),
    row("completions.prompt.type", {"prompt": {"text": "Hi"}}),
    row("completions.prompt.type", {"prompt": True}),
    row("completions.prompt.type", {"prompt": 1.5}),
    row("completions.prompt.empty", {"prompt": ""}),
    row("completions.prompt.empty", {"prompt": []}),
    row("completions.prompt.batch", {"prompt": ["Hi", "Ho"]}),
    row("completions.prompt.batch", {"prompt": ["Hi"]}),
    row("completions.prompt.batch", {"prompt": [[1, 2]]}),
    row("completions.prompt.batch", {"prompt": [[1, 2], [3]]}),
    row("completions.prompt.id-type", {"prompt": [1, 2.5]}),
    row("completions.prompt.id-type", {"prompt": [1, True]}),
    row("completions.prompt.id-type", {"prompt": [1, "2"]}),
    row("completions.prompt.id-type", {"prompt": [1, None]}),
    row("completions.prompt.id-type", {"prompt": [1, {"id": 2}]}),
]


@pytest.mark.parametrize("fields", REFUSALS)
def test_refused(target: Target, fields: dict[str, object]) -> None:
    target.ask(COMPLETIONS, **fields).expect_refusal("prompt", within=True)


@checks("completions.prompt.id-range")
@pytest.mark.parametrize("token_id", [BEYOND_ANY_VOCABULARY, -1, 2**64])
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


@checks("completions.prompt.characters")
def test_characters(target: Target) -> None:
    """What stands behind a null character, an emoji or a line's end is read, too."""
    for start in ("a\0b", "🙂", "a\r\nb", "\u2028"):
        short, long = (
            target.completions(prompt=start + rest).usage.prompt_tokens for rest in ("", " Hi" * 20)
        )
        assert long >= short + 20, f"{short} tokens for {start!r}, {long} with twenty words more"


@checks("completions.messages.refused")
def test_messages_refused(target: Target) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    target.ask(COMPLETIONS, messages=messages).expect_refusal("messages")
    target.ask(COMPLETIONS, messages=messages, prompt=ABSENT).expect_refusal("messages")
    target.ask(COMPLETIONS, messages="Hi").expect_refusal("messages")


@checks("completions.messages.null")
def test_null_messages(target: Target) -> None:
    target.completions(messages=None)


# Turns of the commonest chat format, which a model that knows it ends after a few words, and texts
# after which others do.
ENDING = [
    f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n",
    QUESTION,
    "The end.",
]


MOST = 24
"""Tokens, more than such a model writes before it ends one of these."""


@pytest.fixture(scope="session")
def ended(target: Target) -> Answer:
    """A text that the model itself ends."""
    for prompt in ENDING:
        answer = target.ask(COMPLETIONS, prompt=prompt, max_tokens=MOST)
        if answer.completion(COMPLETIONS).usage.completion_tokens < MOST:
            return answer
    pytest.skip("the model ends none of the texts that the suite knows")


def again(target: Target, ended: Answer, **fields: object) -> Completion:
    """The answer to the same request with ``fields`` besides."""
    assert isinstance(ended.request, dict)
    return target.post(COMPLETIONS.path, {**ended.request, **fields}).completion(COMPLETIONS)


@checks("completions.end.uncounted")
def test_end_is_not_counted(target: Target, ended: Answer) -> None:
    """If it were, a cap of one token less would leave the text whole."""
    whole = again(target, ended, return_token_ids=True)
    count = whole.usage.completion_tokens
    if count < 2:
        pytest.skip(f"a text of {count} tokens is too short to be cut")
    shorter = again(target, ended, max_tokens=count - 1).text
    assert shorter != whole.text, f"{count} tokens are counted, and {count - 1} are {shorter!r} too"
    ids = whole.token_ids
    assert ids is None or len(ids) == count, f"{count} tokens are counted, the ids are {ids}"


@checks("completions.end.stop")
def test_end(ended: Answer) -> None:
    reason = ended.completion(COMPLETIONS).finish_reason
    assert reason == "stop", f"finish_reason is {reason!r} where the model ended"


@checks("completions.ignore-eos.runs-on")
def test_ignore_eos(target: Target, ended: Answer) -> None:
    answer = again(target, ended, ignore_eos=True)
    seen = answer.usage.completion_tokens, answer.finish_reason
    assert seen == (MOST, "length"), f"ended after {seen[0]} of {MOST} tokens with {seen[1]!r}"


@checks("completions.ignore-eos.off")
@pytest.mark.parametrize("value", [False, None])
def test_not_ignoring_eos(target: Target, ended: Answer, value: object) -> None:
    seen, wanted = again(target, ended, ignore_eos=value), ended.completion(COMPLETIONS)
    ends = [(one.text, one.finish_reason) for one in (seen, wanted)]
    assert ends[0] == ends[1], f"{ends[0]} with {value!r}, {ends[1]} without the field"


@checks("completions.ignore-eos.type")
@pytest.mark.parametrize("value", ["true", 1, 0, []])
def test_ignore_eos_type(target: Target, value: object) -> None:
    target.ask(COMPLETIONS, ignore_eos=value).expect_refusal("ignore_eos")


@checks("completions.streaming.exact")
@captured("completions/shape-chunks")
def test_exact_chunk(golden: Golden, target: Target) -> None:
    stream = target.stream(COMPLETIONS, prompt=COUNTING, max_tokens=4)
    golden.shape(stream.answer)
