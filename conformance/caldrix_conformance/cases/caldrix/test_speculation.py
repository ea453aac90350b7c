"""Speculative decoding: what the usage says of it, and that greedy answers are the plain ones.

A seeded draw at a high temperature from the best token alone gives the greedy tokens, and runs
without speculation: that is the plain decoding that a client can compare with.
"""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.answers import Completion, Streamed
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.contracts.caldrix.speculation import (
    MEMBERS,
    REPETITIVE,
    speculative_counts,
    speculative_in,
)
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks, needs
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

LENGTH = 24
PLAIN = {"temperature": 2.0, "top_k": 1, "seed": 7}
CODE = "x = 1\ny = 2\nz = 3\nprint(x)\nprint(y)\nprint("
STORY = "The cat sat on the mat. The dog sat on the mat. The cat sat on"


def ask(target: Target, prompt: str = REPETITIVE, **fields: Any) -> Completion:
    return target.completions(**{"prompt": prompt, "max_tokens": LENGTH, **fields})


@pytest.fixture(scope="session")
def guessed(target: Target) -> Completion:
    """An answer that any proposer has guesses for; nothing but its cap ends it."""
    return ask(target, ignore_eos=True)


@checks("speculation.usage.member")
def test_member(guessed: Completion) -> None:
    speculative_in(guessed)
    seen = guessed.body["usage"]["speculative"]
    assert set(seen) == set(MEMBERS), f"speculative is {seen}"


@checks("speculation.usage.counts")
def test_counts(guessed: Completion) -> None:
    counts = speculative_in(guessed)
    assert 0 <= counts["accepted"] <= counts["proposed"], f"speculative is {counts}"


@checks("speculation.usage.proposed")
@pytest.mark.parametrize("prompt", [REPETITIVE, "Once upon a time"])
@pytest.mark.parametrize("cap", [1, 2, LENGTH])
def test_proposed(target: Target, prompt: str, cap: int) -> None:
    usage = ask(target, prompt, max_tokens=cap).body["usage"]
    if "speculative" in usage:
        proposed = speculative_counts(usage)["proposed"]
        assert proposed > 0, f"speculative says that {proposed} tokens were proposed"


@checks("speculation.usage.made")
def test_made(guessed: Completion) -> None:
    accepted, made = speculative_in(guessed)["accepted"], guessed.usage.completion_tokens
    assert accepted <= made, f"{accepted} tokens were accepted for an answer of {made}"


@pytest.fixture(scope="session")
def streamed(target: Target) -> Streamed:
    return target.stream(
        COMPLETIONS,
        prompt=REPETITIVE,
        max_tokens=LENGTH,
        ignore_eos=True,
        return_token_ids=True,
        stream_options={"include_usage": True},
    )


@checks("speculation.usage.streamed")
def test_streamed_usage(streamed: Streamed) -> None:
    speculative_counts(streamed.usages[0]["usage"])


@checks("speculation.usage.seeded")
@pytest.mark.parametrize("fields", [PLAIN, {"temperature": 0.7, "seed": 0}])
def test_seeded(target: Target, fields: dict[str, Any]) -> None:
    usage = ask(target, **fields).body["usage"]
    assert "speculative" not in usage, f"a seeded draw's usage is {usage}"


@checks("speculation.usage.greedy-seed")
def test_greedy_seed(target: Target) -> None:
    usage = ask(target, seed=7).body["usage"]
    assert "speculative" in usage, f"a greedy request's usage with a seed is {usage}"


def expect_plain(target: Target, endpoint: Endpoint, **fields: Any) -> None:
    """Ask greedily and by plain decoding; the answers must be the same."""
    fields = {"max_tokens": LENGTH, "return_token_ids": True, **fields}
    seen, wanted = (target.complete(endpoint, **fields, **more) for more in ({}, PLAIN))
    for what in ("text", "token_ids", "finish_reason", "usage"):
        one, other = getattr(seen, what), getattr(wanted, what)
        assert one == other, f"the {what} is {one!r}, by plain decoding {other!r}"


PROMPTS = [REPETITIVE, CODE, STORY, "la la la la la la la la"]

ROWS = [
    *(row("speculation.greedy.same", {"prompt": prompt, "ignore_eos": True}) for prompt in PROMPTS),
    *(
        row("speculation.greedy.penalty", {"prompt": prompt, "repetition_penalty": penalty})
        for prompt in (REPETITIVE, STORY)
        for penalty in (1.3, 0.7)
    ),
]


@pytest.mark.parametrize("fields", ROWS)
def test_greedy(target: Target, fields: dict[str, Any]) -> None:
    expect_plain(target, COMPLETIONS, **fields)


@checks("speculation.greedy.stop")
@pytest.mark.parametrize("length", [1, 3, 6])
def test_stop(target: Target, guessed: Completion, length: int) -> None:
    """The stop is a piece of the answer itself, from its middle."""
    begin = len(guessed.text) // 2
    stop = guessed.text[begin : begin + length]
    expect_plain(target, COMPLETIONS, prompt=REPETITIVE, stop=stop or None, ignore_eos=True)


@checks("speculation.greedy.end")
@needs(Capability.CHAT)
def test_end(target: Target) -> None:
    expect_plain(target, CHAT, **CHAT.prompt("What is 1 + 1? Answer with one word."))


@checks("speculation.greedy.end-ignored")
def test_end_ignored(target: Target) -> None:
    prompt = "What is 1 + 1? Answer with one word. Two. Answer with one word."
    expect_plain(target, COMPLETIONS, prompt=prompt, ignore_eos=True)


@checks("speculation.greedy.cap")
@pytest.mark.parametrize("cap", [1, 2, 3, 5, 8])
def test_cap(target: Target, guessed: Completion, cap: int) -> None:
    seen = ask(target, max_tokens=cap, ignore_eos=True)
    tokens = seen.usage.completion_tokens
    assert tokens == cap, f"{tokens} tokens for a cap of {cap}"
    assert guessed.text.startswith(seen.text), (
        f"{seen.text!r} with a cap of {cap}, {guessed.text!r} with one of {LENGTH}"
    )


@checks("speculation.greedy.streamed")
def test_streamed(target: Target, streamed: Streamed) -> None:
    whole = ask(target, ignore_eos=True, return_token_ids=True)
    for what in ("text", "token_ids", "finish_reason"):
        one, other = getattr(streamed, what), getattr(whole, what)
        assert one == other, f"the {what} streams as {one!r}, whole it is {other!r}"
