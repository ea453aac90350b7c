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

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import evolve, field, frozen

from caldrix.decisions.answers import Answer, answer, probabilities
from caldrix.decisions.errors import NoTemplate
from caldrix.decisions.labels import LETTERS, label_tokens, labels_of
from caldrix.decisions.limits import Limits, Range
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.reading import Asked, Prompt
from caldrix.decisions.values import Text, says_something, written
from caldrix.text.template import ChatTemplate
from caldrix.text.tokenizer import Tokenizer
from caldrix.weights.tensor import Float32

_NO_THINKING = {"enable_thinking": False, "thinking": False}
"""The names that chat templates have for it: Qwen's and others', DeepSeek's and Granite's."""

_UNASKED: Mapping[type[Question], str] = {
    Choice: "Which option fits the state best?",
    Score: "Which level fits the state best?",
    Noul: "Which answer fits the state best?",
}
"""The question where there are no instructions."""


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

    @property
    def limits(self) -> Limits:
        """There is an option or level for each letter."""
        lettered = Range(1, len(LETTERS))
        return Limits(options=lettered, levels=lettered)

    @property
    def counts_shared_once(self) -> bool:
        """Each prompt counts whole, however much of it was read for another."""
        return False

    def about(self, state: Text) -> ZeroShotPrompts:
        """What writes prompts about a state."""
        return ZeroShotPrompts(self, written(state))

    def answer(self, question: Question, logits: Sequence[Float32]) -> Answer:
        """The answer to a question, from float32 ``[label_ids]`` logits of its one prompt.

        Raises UnusableReading.
        """
        [whole] = logits
        return answer(question, probabilities(whole))

    def prompt(self, state: str, question: Question) -> Prompt:
        """The prompt of one question about a state, already `written`. Raises TemplateError."""
        messages = [{"role": "user", "content": message(state, question)}]
        rendered = self.template.render(messages, **_NO_THINKING)
        return Prompt(
            tuple(self.tokenizer.encode_prompt(rendered)),
            tuple(self.label_ids[label] for label in labels_of(question)),
        )


@frozen(eq=False)
class ZeroShotPrompts:
    """Writes the prompts about one state."""

    zero_shot: ZeroShot
    state: str = field(repr=False)

    @property
    def shared(self) -> tuple[int, ...]:
        """Nothing yet: where a template leaves the state's tokens shows only in whole prompts."""
        return ()

    def write(self, question: Question) -> Iterator[Prompt]:
        """The prompt of a question, whole. Raises OutOfLimits, TemplateError, or InvalidText."""
        self.zero_shot.limits.check(question)
        return iter([self.zero_shot.prompt(self.state, question)])

    def gather(self, prompts: Mapping[str, tuple[Prompt, ...]]) -> Asked:
        """All prompts: what two or more of them share is all that they begin with alike.

        Of each at least its last token is left, after which the labels are read.
        """
        length = _shared_length([prompt.tokens for each in prompts.values() for prompt in each])
        rest = {
            name: tuple(evolve(prompt, tokens=prompt.tokens[length:]) for prompt in each)
            for name, each in prompts.items()
        }
        first = next((prompt.tokens for each in prompts.values() for prompt in each), ())
        return Asked(first[:length], rest)


def _shared_length(rows: Sequence[tuple[int, ...]]) -> int:
    if len(rows) < 2:
        return 0
    # What the lowest and the highest begin with alike, so do all between them.
    lowest, highest = min(rows), max(rows)
    most = min(map(len, rows)) - 1
    differing = (at for at in range(most) if lowest[at] != highest[at])
    return next(differing, max(most, 0))


def message(state: str, question: Question) -> str:
    """What the model is asked, before the chat template."""
    instructions = question.instructions
    asked = written(instructions) if says_something(instructions) else _UNASKED[type(question)]
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
                if says_something(text):
                    yield _described(word, text)
            yield "Answer with Yes or No."


def _labelled(heading: str, texts: Iterable[str]) -> Iterator[str]:
    yield f"{heading}:"
    for label, text in zip(LETTERS, texts, strict=False):
        yield f"{label}. {text}"


def _described(name: str, text: Text | None) -> str:
    return f"{name}: {written(text)}" if says_something(text) else name
