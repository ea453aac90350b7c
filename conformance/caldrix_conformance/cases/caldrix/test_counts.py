"""Prompt tokens of many kinds of texts, for tokenizers that the suite has goldens of."""

from __future__ import annotations

from caldrix_conformance.endpoints import CHAT, COMPLETIONS
from caldrix_conformance.goldens import Golden
from caldrix_conformance.marks import captured, checks
from caldrix_conformance.prompts import CHAT_COUNTS, COMPLETION_COUNTS, SPECIAL_CHAT_COUNTS


@checks("chat.usage.tokenizer")
@captured("chat/counts")
def test_messages(golden: Golden) -> None:
    golden.counts(CHAT, CHAT_COUNTS)


@checks("chat.content.special")
@captured("chat/counts-of-special-tokens")
def test_special_tokens(golden: Golden) -> None:
    golden.counts(CHAT, SPECIAL_CHAT_COUNTS)


@checks("completions.usage.tokenizer")
@captured("completions/counts")
def test_prompts(golden: Golden) -> None:
    golden.counts(COMPLETIONS, COMPLETION_COUNTS)
