"""Whole answers, for models that the suite has goldens of.

The prompts are such that a small model is sure of every token.
"""

from __future__ import annotations

from typing import Any

import pytest

from caldrix_conformance.answers import Answer
from caldrix_conformance.capabilities import Capability
from caldrix_conformance.endpoints import CHAT, COMPLETIONS
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks, needs
from caldrix_conformance.prompts import CONVERSATIONS, message, question
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

COUNTING = "1, 2, 3, 4, 5,"
JAPAN = "What is the capital of Japan?"
JAPAN_TURN = f"<|im_start|>user\n{JAPAN}<|im_end|>\n<|im_start|>assistant\n"


def asking(clause_id: str, golden: str, **fields: Any) -> pytest.ParameterSet:
    """A row that judges the clause by what a request with ``fields`` is answered."""
    return row(clause_id, fields, golden=golden)


CHATS = [
    asking("chat.response.text", "chat/question", messages=question(JAPAN)),
    asking("chat.response.text", "chat/turns", messages=CONVERSATIONS["several turns"]),
    asking(
        "chat.response.text",
        "chat/system",
        messages=[message("system", "You answer with one word."), *question(JAPAN)],
    ),
    asking(
        "chat.content.captured",
        "chat/parts",
        messages=question(
            [{"type": "text", "text": text} for text in ("Rome is in Italy.", JAPAN)]
        ),
    ),
    asking("chat.stop.captured", "chat/stop", messages=question(JAPAN), stop=["Kyoto", " Tok"]),
    asking("streaming.text.captured", "streaming/question", messages=question(JAPAN), stream=True),
]


@pytest.mark.parametrize("fields", CHATS)
def test_chat(golden: Golden, target: Target, fields: dict[str, Any]) -> None:
    golden.text(lambda: target.ask(CHAT, **{"max_tokens": 16, **fields}))


COMPLETED = [
    asking("completions.response.text", "completions/counting", prompt=COUNTING),
    asking("completions.stop.captured", "completions/stop", prompt=COUNTING, stop=" 8"),
    asking(
        "completions.ignore-eos.captured",
        "completions/past-the-end",
        prompt=JAPAN_TURN,
        max_tokens=16,
        ignore_eos=True,
    ),
    asking("completions.streaming.captured", "completions/stream", prompt=COUNTING, stream=True),
]


@pytest.mark.parametrize("fields", COMPLETED)
def test_completions(golden: Golden, target: Target, fields: dict[str, Any]) -> None:
    golden.text(lambda: target.ask(COMPLETIONS, **{"max_tokens": 10, **fields}))


@needs(Capability.TOKENS)
@checks("completions.prompt.captured")
@captured("completions/token-ids")
def test_token_ids(golden: Golden, target: Target) -> None:
    """The model's own words, as ids, are what it goes on with."""

    def ask() -> Answer:
        ids = target.completions(prompt=COUNTING, max_tokens=9, return_token_ids=True).token_ids
        assert ids, "no token_ids"
        return target.ask(COMPLETIONS, prompt=ids, max_tokens=10, return_token_ids=True)

    golden.text(ask)
