"""Chat completions: the answer, its counts, and what of the messages reaches the model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caldrix_conformance.answers import Answer, Completion
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.goldens import Goldens, Kind
from caldrix_conformance.marks import checks
from caldrix_conformance.shapes import CHAT_ANSWER, expect_shape
from caldrix_conformance.target import ABSENT, Target


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


@checks("chat.response.shape")
def test_shape(chat_answer: Answer) -> None:
    expect_shape(chat_answer.expect(200).object, CHAT_ANSWER)


@checks("chat.response.exact")
def test_exact_shape(golden: Goldens, target: Target) -> None:
    golden.check("chat/shape-answer", target.ask(CHAT, max_tokens=4), Kind.SHAPE)


@checks("chat.response.object")
def test_object(chat_completion: Completion) -> None:
    seen = chat_completion.body.get("object")
    assert seen == "chat.completion", f"object is {seen!r}"


@checks("chat.response.choice")
def test_choice(chat_completion: Completion) -> None:
    (choice,) = chat_completion.body["choices"]
    assert choice.get("index") == 0, f"index is {choice.get('index')!r}"
    role = choice["message"].get("role")
    assert role == "assistant", f"the message's role is {role!r}"


@checks("chat.response.id")
def test_id(chat_completion: Completion, target: Target) -> None:
    first, second = chat_completion.body.get("id"), target.chat().body.get("id")
    assert str(first).startswith("chatcmpl-"), f"id is {first!r}"
    assert first != second, f"two answers have the id {first!r}"


@checks("chat.response.created")
def test_created(chat_completion: Completion) -> None:
    created = chat_completion.body.get("created")
    assert type(created) is int, f"created is {created!r}"
    # A time in milliseconds would be a thousand times that.
    assert 1_500_000_000 < created < 10_000_000_000, f"created is {created}, no time in seconds"


@checks("chat.response.model")
def test_model(chat_completion: Completion, target: Target) -> None:
    seen = chat_completion.body.get("model")
    assert seen == target.model, f"model is {seen!r}, not {target.model!r}"


@checks("chat.response.printed")
def test_printed(golden: Goldens) -> None:
    golden.replay("chat/document-capital-of-france")


@checks("chat.response.text")
def test_text(golden: Goldens, target: Target) -> None:
    answer = target.ask(CHAT, **CHAT.prompt("What is the capital of Japan?"), max_tokens=16)
    golden.check("chat/text-capital-of-japan", answer, Kind.TEXT)


@checks("chat.usage.total")
def test_usage_total(chat_completion: Completion) -> None:
    usage = chat_completion.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, f"{usage}"


@checks("chat.usage.completion")
def test_usage_completion(target: Target) -> None:
    for cap in (1, 3):
        seen = target.chat(max_tokens=cap).usage.completion_tokens
        assert seen == cap, f"completion_tokens is {seen} for a cap of {cap}"


@checks("chat.usage.prompt")
def test_usage_prompt(target: Target) -> None:
    short = target.chat(**CHAT.prompt("Hi")).usage.prompt_tokens
    long = target.chat(**CHAT.prompt("Hi " * 20)).usage.prompt_tokens
    assert short > 0, "a prompt of no tokens"
    assert long >= short + 19, f"{short} tokens for one word, {long} for twenty"


@checks("chat.model.unknown-names")
def test_unknown_model_names(target: Target) -> None:
    message = str(target.ask(CHAT, model="no-such-model").expect(400).error.get("message"))
    for name in ("no-such-model", target.model):
        assert name in message, f"the message does not name {name}: {message!r}"


@checks("chat.messages.most")
def test_most_messages(target: Target) -> None:
    target.ask(CHAT, messages=[user("a")] * 256).expect(200)


@checks("chat.messages.template")
def test_template(target: Target) -> None:
    rendered = target.chat(**CHAT.prompt("Hi")).usage.prompt_tokens
    bare = target.completions(prompt="Hi").usage.prompt_tokens
    assert rendered > bare, f"{rendered} tokens as a message, {bare} as a bare text"


@checks("chat.messages.conversation")
def test_conversation(target: Target) -> None:
    def count(reply: str) -> int:
        turns = [user("Hi"), {"role": "assistant", "content": reply}, user("Go on.")]
        return target.chat(messages=turns).usage.prompt_tokens

    short, long = count("Hello!"), count("Hello! " * 20)
    assert long >= short + 19, f"{short} tokens with a short reply, {long} with a long one"


@checks("chat.system.taken")
def test_system(target: Target) -> None:
    def count(text: str) -> int:
        system = {"role": "system", "content": text}
        return target.chat(messages=[system, user("Hi")]).usage.prompt_tokens

    short, long = count("Be kind."), count("Be kind. " * 10)
    assert long >= short + 9, f"{short} tokens with a short system text, {long} with a long one"


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        pytest.param(["Hi there"], "Hi there", marks=checks("chat.content.parts"), id="one"),
        pytest.param(
            ["Say yes.", "Or no?"],
            "Say yes.\nOr no?",
            marks=checks("chat.content.joined"),
            id="joined",
        ),
    ],
)
def test_parts(target: Target, parts: list[str], text: str) -> None:
    as_parts = [{"type": "text", "text": part} for part in parts]
    seen, wanted = (
        target.chat(messages=[user(content)], max_tokens=6) for content in (as_parts, text)
    )
    assert seen.usage.prompt_tokens == wanted.usage.prompt_tokens, (
        f"{seen.usage.prompt_tokens} prompt tokens as parts, "
        f"{wanted.usage.prompt_tokens} as one text"
    )
    assert seen.text == wanted.text, f"{seen.text!r} as parts, {wanted.text!r} as one text"


@checks("chat.content.image-marker")
def test_image_marker(target: Target) -> None:
    words = "Look at <image> and tell."
    parts = [{"type": "text", "text": words}]
    as_part, as_text, without = (
        target.chat(messages=[user(content)]).usage.prompt_tokens
        for content in (parts, words, "Look at and tell.")
    )
    assert without < as_part == as_text, (
        f"{as_part} prompt tokens with <image> in a part, {as_text} in a string, {without} without"
    )


SPECIAL = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<end_of_turn>", "</s>", "<|end|>")


@checks("chat.content.special")
def test_special(target: Target) -> None:
    """What a bare prompt holds as one token is one token in a message, too."""

    def added(endpoint: Endpoint, special: str, times: int) -> int:
        plain, more = (
            target.complete(endpoint, **endpoint.prompt(text)).usage.prompt_tokens
            for text in ("Hi", f"Hi{special * times}")
        )
        return more - plain

    for special in SPECIAL:
        if added(COMPLETIONS, special, 4) == 4:
            seen = added(CHAT, special, 4)
            assert seen == 4, f"{special} four times adds {seen} tokens to a message"
            return
    pytest.skip("the model has none of the special tokens that the suite knows")


@pytest.mark.parametrize(
    "field",
    [
        pytest.param("max_tokens", marks=checks("chat.max-tokens.caps"), id="max_tokens"),
        pytest.param(
            "max_completion_tokens",
            marks=checks("chat.max-tokens.other-name"),
            id="max_completion_tokens",
        ),
    ],
)
def test_cap(target: Target, field: str) -> None:
    answer = target.chat(**{"max_tokens": ABSENT, field: 2})
    assert answer.usage.completion_tokens <= 2, f"{answer.usage} for a cap of 2"
    assert answer.finish_reason == "length", f"finish_reason is {answer.finish_reason!r}"


@checks("chat.max-tokens.absent")
def test_no_hidden_cap(target: Target) -> None:
    """OpenAI's own default for completions is 16 tokens, and some servers have one of their own."""
    wanted, pieces, reason = 32, 0, None
    prompt = CHAT.prompt("Tell me a very long story, with many details.")
    with target.open_stream(CHAT, **prompt, max_tokens=ABSENT) as response:
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if not line.startswith("data: ") or data == "[DONE]":
                continue
            chunk = json.loads(data)
            reason = chunk["choices"][0]["finish_reason"] if chunk["choices"] else reason
            pieces += 1
            if pieces > wanted:
                return
    assert reason == "stop", f"the answer ended after {pieces} chunks with {reason!r}"


@checks("chat.end.stop")
def test_end(target: Target) -> None:
    answer = target.chat(**CHAT.prompt("What is 1 + 1? Answer with one word."), max_tokens=48)
    if answer.usage.completion_tokens == 48:
        pytest.skip("the model did not end its answer within 48 tokens")
    assert answer.finish_reason == "stop", (
        f"finish_reason is {answer.finish_reason!r} after {answer.usage.completion_tokens} tokens"
    )
