"""What the two readings have in common: a state and questions become prompts, and logits answers.

A chat model is asked by `ZeroShot`, a model that was trained for it by `Decider`. Whoever has
either asks it like this::

    writer = form.about(state)
    prompts = {name: tuple(writer.write(question)) for name, question in questions.items()}
    asked = writer.gather(prompts)
    # ... the logits after asked.shared + prompt.tokens, at prompt.label_ids, prompt by prompt ...
    form.answer(question, logits)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from attrs import field, frozen

from caldrix.decisions.answers import Answer
from caldrix.decisions.limits import Limits
from caldrix.decisions.questions import Question
from caldrix.decisions.values import Text
from caldrix.weights.tensor import Float32


@frozen
class Prompt:
    """A prompt as token ids, and the tokens of the labels to read after it, in their order."""

    tokens: tuple[int, ...] = field(repr=False)
    """After those that all prompts of the request begin with; one at least."""
    label_ids: tuple[int, ...]


@frozen
class Asked:
    """All prompts of a request."""

    shared: tuple[int, ...] = field(repr=False)
    """The token ids that every one of them begins with; none are shared by a single prompt of a
    chat model."""
    prompts: Mapping[str, tuple[Prompt, ...]]
    """By the names of their questions."""


class PromptWriter(Protocol):
    """Writes the prompts about one state, a question at a time."""

    @property
    def shared(self) -> tuple[int, ...]:
        """The token ids before those that `write` gives."""
        ...

    def write(self, question: Question) -> Iterator[Prompt]:
        """What a question is read from, one prompt or several, each written when it is asked for.

        So whoever finds one too long is spared the others. Raises OutOfLimits, InvalidText, or
        TemplateError, and the last two also later.
        """
        ...

    def gather(self, prompts: Mapping[str, tuple[Prompt, ...]]) -> Asked:
        """All that was written for a request, with what can be read once for all of it."""
        ...


class Format(Protocol):
    """How a model is asked, and how what it says is understood."""

    @property
    def limits(self) -> Limits:
        """What it can be asked."""
        ...

    @property
    def counts_shared_once(self) -> bool:
        """Whether a request's usage counts the shared tokens once, or with each prompt."""
        ...

    def about(self, state: Text) -> PromptWriter:
        """What writes prompts about a state. Raises StateTooLong or InvalidText."""
        ...

    def answer(self, question: Question, logits: Sequence[Float32]) -> Answer:
        """The answer to a question, from float32 ``[label_ids]`` logits of each of its prompts.

        Raises UnusableReading.
        """
        ...
