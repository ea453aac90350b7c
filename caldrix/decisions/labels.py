"""Labels: the words whose next-token logits are read, each one token of its own.

The zero-shot reading has letters, and Yes and No; a decider has letters, and then pairs of them.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from attrs import frozen

from caldrix.decisions.errors import NoLabelToken
from caldrix.decisions.questions import Choice, Noul, Question, Score

LETTERS = tuple(string.ascii_uppercase)
"""Of the options of a choice and of the levels of a score, in their order."""
YES_NO = ("Yes", "No")
"""Of a noul in the zero-shot reading."""
MOST_LABELS = 255
"""That a decider has, whatever its vocabulary."""


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
    """The token of every label of the zero-shot reading, as a text of its own.

    Raises NoLabelToken for the first label that is not one token, shares its token with another
    one, or has one that the model, with ids from 0 to ``vocab_size`` - 1, does not know.
    """
    return _tokens(tokenizer, (*LETTERS, *YES_NO), vocab_size)


@frozen
class Label:
    """A decider's label."""

    text: str
    token: int


def decider_labels(tokenizer: Encoder, vocab_size: int) -> tuple[Label, ...]:
    """A to Z, then AA to ZZ as far as they are tokens of their own, `MOST_LABELS` at most.

    Raises NoLabelToken for one of the 26 letters, as `label_tokens` does.
    """
    tokens = _tokens(tokenizer, LETTERS, vocab_size)
    for label in map("".join, itertools.product(LETTERS, repeat=2)):
        try:
            tokens[label] = _token(tokenizer, label, vocab_size, tokens.values())
        except NoLabelToken:
            continue  # options go on with the next one
    return tuple(itertools.starmap(Label, tokens.items()))[:MOST_LABELS]


def _tokens(tokenizer: Encoder, labels: Iterable[str], vocab_size: int) -> dict[str, int]:
    """The token of each label, no two the same."""
    tokens: dict[str, int] = {}
    for label in labels:
        tokens[label] = _token(tokenizer, label, vocab_size, tokens.values())
    return tokens


def _token(tokenizer: Encoder, label: str, vocab_size: int, taken: Collection[int]) -> int:
    ids = tokenizer.encode(label, add_special_tokens=False)
    if len(ids) != 1:
        raise NoLabelToken(label, f"{len(ids)} tokens")
    (token,) = ids
    if token >= vocab_size:
        raise NoLabelToken(label, f"the token {token}, which the model does not have,")
    if token in taken:
        raise NoLabelToken(label, "the token of another label")
    return token
