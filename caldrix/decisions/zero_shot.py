"""The zero-shot reading: a question as one message to a chat model, and what is read of its reply.

The message is the state, the question, its options under their labels, and what to reply with; the
model's next-token logits at the labels are the answer. The document leaves the wording open, and
this is ours. A choice reads::

    State:
    Customer message: I was charged twice.

    Question: Which team should handle this message?
    Options:
    A. billing: payments, refunds and invoices
    B. shipping
    Answer with the letter of the best option.

A score has ``Levels:``, and ``level`` for ``option``. A noul has a line for each description that
there is, as in ``Yes: it came after the day that was named``, and ``Answer with Yes or No.`` Where
there are no instructions the question is which option, level or answer fits the state best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeGuard

from attrs import frozen

from caldrix.decisions.errors import NoTemplate
from caldrix.decisions.labels import LETTERS, label_tokens, labels_of
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.values import Text, written
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer

_NO_THINKING = {"enable_thinking": False, "thinking": False}
"""The names that chat templates have for it: Qwen's and others', DeepSeek's and Granite's."""

_UNASKED: Mapping[type[Question], str] = {
    Choice: "Which option fits the state best?",
    Score: "Which level fits the state best?",
    Noul: "Which answer fits the state best?",
}
"""The question where there are no instructions."""


@frozen
class Prompt:
    """A prompt as token ids, and the tokens of the labels to read after it, in their order."""

    tokens: tuple[int, ...]
    label_ids: tuple[int, ...]


@frozen(eq=False)
class ZeroShot:
    """How a chat model is asked."""

    template: ChatTemplate
    tokenizer: Tokenizer
    label_ids: Mapping[str, int]

    @classmethod
    def of(cls, template: ChatTemplate | None, tokenizer: Tokenizer, vocab_size: int) -> ZeroShot:
        """Asks a model of ``vocab_size`` tokens. Raises UnfitModel if it can't be asked."""
        if template is None:
            raise NoTemplate
        return cls(template, tokenizer, label_tokens(tokenizer, vocab_size))

    def prompt(self, state: str, question: Question) -> Prompt:
        """The prompt of one question about a state, already `written`. Raises TemplateError."""
        messages = [{"role": "user", "content": message(state, question)}]
        rendered = self.template.render(messages, **_NO_THINKING)
        return Prompt(
            tuple(self.tokenizer.encode_prompt(rendered)),
            tuple(self.label_ids[label] for label in labels_of(question)),
        )


def message(state: str, question: Question) -> str:
    """What the model is asked, before the chat template."""
    instructions = question.instructions
    asked = written(instructions) if _says_something(instructions) else _UNASKED[type(question)]
    lines = ["State:", state, "", f"Question: {asked}", *_answers(question)]
    return "\n".join(lines)


def _answers(question: Question) -> Iterable[str]:
    """What there is to choose from, and how to reply."""
    match question:
        case Choice(options=options):
            texts = (_described(name, text) for name, text in options.items())
            yield from _labelled("Options", texts)
            yield "Answer with the letter of the best option."
        case Score(levels=levels):
            yield from _labelled("Levels", map(written, levels))
            yield "Answer with the letter of the best level."
        case Noul(yes=yes, no=no):
            for word, text in (("Yes", yes), ("No", no)):
                if _says_something(text):
                    yield _described(word, text)
            yield "Answer with Yes or No."


def _labelled(heading: str, texts: Iterable[str]) -> Iterator[str]:
    yield f"{heading}:"
    for label, text in zip(LETTERS, texts, strict=False):
        yield f"{label}. {text}"


def _described(name: str, text: Text | None) -> str:
    return f"{name}: {written(text)}" if _says_something(text) else name


def _says_something(text: Text | None) -> TypeGuard[Text]:
    """Whether it is there; an empty string is read like a missing one."""
    return text is not None and text != ""
