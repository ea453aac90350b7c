"""Labels: the words whose next-token logits are read, each one token of its own."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Protocol

from caldrix.decisions.errors import NoLabelToken
from caldrix.decisions.questions import Choice, Noul, Question, Score

LETTERS = tuple(string.ascii_uppercase)
"""Of the options of a choice and of the levels of a score, in their order."""
YES_NO = ("Yes", "No")
"""Of a noul."""


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of ``text``."""
        ...


def labels_of(question: Question) -> tuple[str, ...]:
    """The labels that a question's answers have in the zero-shot reading, in their order."""
    match question:
        case Choice():
            return LETTERS[: len(question.options)]
        case Score():
            return LETTERS[: len(question.levels)]
        case Noul():
            return YES_NO


def label_tokens(tokenizer: Encoder, vocab_size: int) -> Mapping[str, int]:
    """The token of every label, as a text of its own.

    Raises NoLabelToken for the first label that is not one token, shares its token with another
    one, or has one that the model, with ids from 0 to ``vocab_size`` - 1, does not know.
    """
    tokens: dict[str, int] = {}
    for label in (*LETTERS, *YES_NO):
        ids = tokenizer.encode(label, add_special_tokens=False)
        if len(ids) != 1:
            raise NoLabelToken(label, f"{len(ids)} tokens")
        (token,) = ids
        if token >= vocab_size:
            raise NoLabelToken(label, f"the token {token}, which the model does not have,")
        if token in tokens.values():
            raise NoLabelToken(label, "the token of another label")
        tokens[label] = token
    return tokens
