"""Chat completions: the answer, its counts, and what of the messages reaches the model."""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.answers import Answer, Completion
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.prompts import SPECIAL_TOKENS
from caldrix_conformance.shapes import CHAT_ANSWER, expect_shape
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text_part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@checks("chat.response.shape")
def test_shape(chat_answer: Answer) -> None:
    expect_shape(chat_answer.expect(200).object, CHAT_ANSWER)


@checks("chat.response.exact")
@captured("chat/shape-answer")
def test_exact_shape(golden: Golden, target: Target) -> None:
    golden.shape(target.ask(CHAT, max_tokens=4))


@checks("chat.response.object")
def test_object(chat_completion: Completion) -> None:
    seen = chat_completion.body.get("object")
    assert seen == "chat.completion", f"object is {seen!r}"


@checks("chat.response.choice")
def test_choice(chat_completion: Completion) -> None:
    (choice,) = chat_completion.body["choices"]
    index = choice.get("index")
    assert (type(index), index) == (int, 0), f"index is {index!r}"
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
@captured("chat/document-capital-of-france")
def test_printed(golden: Golden) -> None:
    golden.replay()


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


@checks("chat.messages.most")
def test_most_messages(target: Target) -> None:
    def count(words: int, messages: int) -> int:
        turns = [user("a " * words), *others[: messages - 1]]
        return target.chat(messages=turns).usage.prompt_tokens

    # A template may want the roles to take turns.
    ask_again = target.ask(CHAT, messages=[user("a")] * 2).status == 200
    others = ([user("a")] if ask_again else [ASSISTANT, user("a")]) * 255
    answer = target.ask(CHAT, messages=[user("a"), *others[:255]])
    if answer.status == 400:
        # As much text in one message tells whether it is the count that is refused.
        one = count(1, 1)
        needed = (count(1, 3) - one) * 255 // 2
        words = needed * 64 // max(count(65, 1) - one, 1)
        as_long = target.ask(CHAT, messages=[user("a " * words)])
        if as_long.status == 400:
            pytest.skip(f"the context does not hold the {needed} tokens of 256 messages")
    answer.completion(CHAT)


@checks("chat.messages.one")
def test_one_message(target: Target) -> None:
    target.chat(messages=[user("a")])


ASSISTANT = {"role": "assistant", "content": "Hello!"}
SYSTEM = {"role": "system", "content": "Be kind."}
ORDERS: dict[str, list[dict[str, Any]]] = {
    "assistant-first": [ASSISTANT, user("Hi")],
    "assistant-last": [user("Hi"), ASSISTANT],
    "two-users": [user("Hi"), user("Ho")],
    "system-alone": [SYSTEM],
    "system-twice": [SYSTEM, SYSTEM, user("Hi")],
    "system-last": [user("Hi"), SYSTEM],
    "unknown-role": [{"role": "critic", "content": "Hm."}, user("Hi")],
    "tool": [user("Hi"), {"role": "tool", "content": "7", "tool_call_id": "1"}],
}


@checks("chat.messages.order")
@pytest.mark.parametrize("messages", ORDERS.values(), ids=ORDERS.keys())
def test_order(target: Target, messages: list[dict[str, Any]]) -> None:
    answer = target.ask(CHAT, messages=messages)
    if answer.status != 200:
        param = str(answer.expect(400).error.get("param"))
        assert param.startswith("messages"), f"param is {param!r}; {answer.seen}"


@checks("chat.messages.unnamed")
def test_unnamed_member(target: Target) -> None:
    plain, seen = (
        target.chat(messages=[{**user("Say yes."), **more}], max_tokens=4)
        for more in ({}, {"x_no_such_member": [1]})
    )
    assert seen.text == plain.text, f"{seen.text!r} with an unnamed member, {plain.text!r} without"
    counts = seen.usage.prompt_tokens, plain.usage.prompt_tokens
    assert counts[0] == counts[1], f"{counts[0]} prompt tokens with it, {counts[1]} without"


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
        row("chat.content.parts", ["Hi there"], "Hi there"),
        row("chat.content.joined", ["Say yes.", "Or no?"], "Say yes.\nOr no?"),
        row("chat.content.joined", ["a", "b\n", "c"], "a\nb\n\nc"),
        row("chat.content.empty-part", ["", "Say yes.", ""], "\nSay yes.\n"),
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


@checks("chat.content.roles")
@pytest.mark.parametrize("role", ["system", "assistant"])
def test_parts_of_other_roles(target: Target, role: str) -> None:
    def count(content: object) -> int:
        first = [user("Hi")] if role == "assistant" else []
        messages = [*first, {"role": role, "content": content}, user("Go on.")]
        return target.chat(messages=messages).usage.prompt_tokens

    as_parts, as_text = count([{"type": "text", "text": "Be kind."}]), count("Be kind.")
    assert as_parts == as_text, f"{as_parts} prompt tokens as a part, {as_text} as a text"


@checks("chat.content.empty")
def test_empty(target: Target) -> None:
    target.chat(messages=[user("")])


@checks("chat.content.image-marker")
def test_image_marker(target: Target) -> None:
    def count(content: object) -> int:
        return target.chat(messages=[user(content)]).usage.prompt_tokens

    words = "Look at <image> and tell."
    with_it, without = count(words), count("Look at and tell.")
    assert with_it > without, f"{with_it} prompt tokens with <image>, {without} without"
    # Whether parts are taken at all is for another clause.
    if target.ask(CHAT, messages=[user(text_part("Hi"))]).status == 200:
        as_part = count(text_part(words))
        assert as_part == with_it, f"{as_part} prompt tokens in a part, {with_it} in a string"


@checks("chat.content.special")
def test_special(target: Target) -> None:
    """What a bare prompt holds as one token is one token in a message, too."""

    def added(endpoint: Endpoint, special: str, times: int) -> int:
        plain, more = (
            target.complete(endpoint, **endpoint.prompt(text)).usage.prompt_tokens
            for text in ("Hi", f"Hi{special * times}")
        )
        return more - plain

    for special in SPECIAL_TOKENS:
        if added(COMPLETIONS, special, 4) == 4:
            seen = added(CHAT, special, 4)
            assert seen == 4, f"{special} four times adds {seen} tokens to a message"
            return
    pytest.skip("the model has none of the special tokens that the suite knows")


@checks("chat.ignore-eos")
def test_ignore_eos(target: Target) -> None:
    prompt = CHAT.prompt("What is 1 + 1? Answer with one word.")
    answer = target.chat(**prompt, max_tokens=48, ignore_eos=True)
    assert answer.usage.completion_tokens == 48, f"{answer.usage} for a cap of 48"


@checks("chat.end.stop")
def test_end(target: Target) -> None:
    answer = target.chat(**CHAT.prompt("What is 1 + 1? Answer with one word."), max_tokens=48)
    if answer.usage.completion_tokens == 48:
        pytest.skip("the model did not end its answer within 48 tokens")
    assert answer.finish_reason == "stop", (
        f"finish_reason is {answer.finish_reason!r} after {answer.usage.completion_tokens} tokens"
    )
