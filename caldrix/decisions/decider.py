"""The decider reading: a model that was trained to answer questions, asked as it was trained.

No chat template is used and no BOS. A prompt is the state, one question and its options under their
labels, and the logits that follow its open bracket are the answer::

    Context:
    Customer message: I was charged twice.

    Question: Which team should handle this message?
    Options:
    (A) billing: payments, refunds and invoices
    (B) shipping
    Answer: (

The state's token ids come first in every prompt of a request, and end where the question begins.
With up to `JOINED` options, all after the state is tokenized as one text; with more, each part on
its own, as the model's own package does it. As there, a special token that is written out in the
text of a request becomes that token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from attrs import field, frozen

from caldrix.decisions.answers import Answer, answer, probabilities
from caldrix.decisions.decider_config import DeciderConfig
from caldrix.decisions.errors import StateTooLong
from caldrix.decisions.labels import Encoder, Label, decider_labels
from caldrix.decisions.limits import Limits, Range
from caldrix.decisions.questions import Choice, Noul, Question, Score
from caldrix.decisions.reading import Asked, Prompt
from caldrix.decisions.values import Text, says_something, spaced, spaced_state
from caldrix.text.tokenizer import Tokenizer
from caldrix.weights.tensor import Float32

JOINED = 10
"""Options that still are tokenized together with their question."""

_OPENING, _CLOSING, _END = "\n(", ") ", "\nAnswer: ("
_UNASKED = "Which answer fits the context?"
"""What a noul asks that has no instructions."""
_LEVEL_NUMBER = re.compile(r"^\s*-?\d+\s*:\s*")
_NOT_NOTHING = 1e-9
"""What is divided by where no level fits at all."""


@frozen
class _Piece:
    """A question as it is put to the model, and the options under its labels."""

    asked: str
    options: Sequence[str]


@frozen(eq=False)
class Decider:
    """How a decider is asked."""

    config: DeciderConfig
    tokenizer: Encoder
    labels: Sequence[Label] = field(repr=False)
    longest_token: int
    """Of the vocabulary, in bytes."""

    @classmethod
    def of(cls, config: DeciderConfig, tokenizer: Tokenizer, vocab_size: int) -> Decider:
        """Asks a model of ``vocab_size`` tokens; it walks through the vocabulary once.

        Raises NoLabelToken if one of the letters A to Z is no token of its own.
        """
        labels = decider_labels(tokenizer, vocab_size)
        return cls(config, tokenizer, labels, tokenizer.longest_token())

    @property
    def limits(self) -> Limits:
        """A choice has at most as many options as there are labels, whatever the config says."""
        return Limits(
            options=Range(2, min(self.config.max_options, len(self.labels))),
            levels=Range(2, 10),
            needs_instructions=True,
            prefix="this model is a decider: ",
        )

    @property
    def counts_shared_once(self) -> bool:
        """The state is read once for all prompts."""
        return True

    def about(self, state: Text) -> DeciderPrompts:
        """What writes prompts about a state, which is tokenized here and never again.

        A text that is far too long is refused before that. Raises StateTooLong, or InvalidText.
        """
        most = self.config.max_state_tokens
        tokens = tuple(self._encode(self._context(state)))
        if len(tokens) > most:
            raise StateTooLong(len(tokens), most)
        return DeciderPrompts(self, tokens)

    def write(self, question: Question) -> Iterator[Prompt]:
        """The prompts of a question without their state; one a level where they are isolated.

        Raises OutOfLimits, and InvalidText when it comes to the prompt.
        """
        self.limits.check(question)
        return map(self._prompt, _pieces(question, isolated=self.config.isolated_levels))

    def answer(self, question: Question, logits: Sequence[Float32]) -> Answer:
        """The answer to a question, from float32 ``[label_ids]`` logits of each of its prompts.

        A level that was asked alone has the probability of its yes over the sum of all levels'
        ones. Raises UnusableReading.
        """
        found = [probabilities(each, self.config.temperature) for each in logits]
        match question:
            case Score() if self.config.isolated_levels:
                return answer(question, _shares([fits for _, fits in found]))
            case Noul():
                [(no, yes)] = found
                return answer(question, (yes, no))
            case _:
                [whole] = found
                return answer(question, whole)

    def _context(self, state: Text) -> str:
        """The words before a question, of which no more is written than could be taken.

        Raises StateTooLong.
        """
        context, size, most = [], 0, self.config.max_state_tokens
        for piece in chain(("Context:\n",), spaced_state(state)):
            context.append(piece)
            size += _size(piece)
            least = _least(size, self.longest_token)
            if least > most:
                raise StateTooLong(least, most, at_least=True)
        return "".join(context)

    def _prompt(self, piece: _Piece) -> Prompt:
        labels = self.labels[: len(piece.options)]
        labelled = list(zip(labels, piece.options, strict=True))
        head = f"\n\nQuestion: {piece.asked}\nOptions:"
        if len(labelled) <= JOINED:
            lines = (f"{_OPENING}{label.text}{_CLOSING}{option}" for label, option in labelled)
            tokens = self._encode(f"{head}{''.join(lines)}{_END}")
        else:
            tokens = self._encode(head)
            opening = self._encode(_OPENING)
            for label, option in labelled:
                tokens += [*opening, label.token, *self._encode(_CLOSING + option)]
            tokens += self._encode(_END)
        return Prompt(tuple(tokens), tuple(label.token for label in labels))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)


@frozen(eq=False)
class DeciderPrompts:
    """Writes the prompts about one state."""

    decider: Decider
    shared: tuple[int, ...] = field(repr=False)
    """The state's token ids, with the words before it."""

    def write(self, question: Question) -> Iterator[Prompt]:
        """What a question is read from. Raises as `Decider.write` does."""
        return self.decider.write(question)

    def gather(self, prompts: Mapping[str, tuple[Prompt, ...]]) -> Asked:
        """All prompts: what they share is the state, and no token of a question."""
        return Asked(self.shared, prompts)


def least_tokens(text: str, longest_token: int) -> int:
    """As many tokens as a text has at least, if none stands for more than ``longest_token`` bytes.

    That holds as long as the tokenizer doesn't shrink the text before it splits it, as Unicode's
    normalization forms do to letters whose accents are written apart.
    """
    return _least(_size(text), longest_token)


def _least(size: int, longest_token: int) -> int:
    return -(-size // longest_token)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def _pieces(question: Question, *, isolated: bool) -> Iterator[_Piece]:
    asked = spaced(question.instructions) if says_something(question.instructions) else _UNASKED
    match question:
        case Choice(options=options):
            yield _Piece(asked, [_described(name, text) for name, text in options.items()])
        case Noul(yes=yes, no=no):
            yield _Piece(asked, [_described("no", no), _described("yes", yes)])
        case Score(levels=levels) if isolated:
            for level in map(spaced, levels):
                proposed = _LEVEL_NUMBER.sub("", level)
                fits = f"{asked}\nProposed answer: {proposed}\nDoes the proposed answer fit?"
                yield _Piece(fits, ["no", "yes"])
        case Score(levels=levels):
            yield _Piece(asked, [f"{index}: {spaced(level)}" for index, level in enumerate(levels)])


def _described(name: str, text: Text | None) -> str:
    return f"{name}: {spaced(text)}" if says_something(text) else name


def _shares(fits: Iterable[float]) -> tuple[float, ...]:
    fits = tuple(fits)
    total = sum(fits) or _NOT_NOTHING
    return tuple(fit / total for fit in fits)
