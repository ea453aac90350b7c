"""Knowing a model by what it does, since a server may call it anything.

Its tokenizer shows in how many tokens easy texts have, its chat template in how many the same texts
have as a message, and its weights in the first greedy token after short prompts. A stored
fingerprint holds all that of the model that goldens were captured from, one readable file each in
goldens/<contract>/fingerprints. A target is asked no more than is needed to tell it from those, and
each thing once a run.

A fault that changes the fingerprint makes goldens judge nothing, where another model would, too:
whoever knows which model they serve should see to it that those clauses pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from pathlib import Path

import httpx2
from attrs import define, field, frozen
from cattrs import BaseValidationError, Converter, transform_error

from caldrix_conformance import resources
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.errors import GoldenError
from caldrix_conformance.target import Target

FINGERPRINTS = "fingerprints"
"""The folder of a contract's fingerprints, beside those of its goldens."""

EASY_TEXTS = (
    "Hello",
    "The quick brown fox jumps over the lazy dog.",
    "In 1969 they counted 1234567 stars.",
    "def area(radius):\n    return 3.14159 * radius ** 2",
    "Le garçon a mangé des crêpes à la forêt.",
    "Сегодня хорошая погода, и мы идём гулять.",
    "今天的天气很好，我们去公园吧。",
    "مرحبا بالعالم",
)
"""Texts that every right implementation of a tokenizer counts alike: the hard ones are goldens."""

PROMPTS = (
    "The capital of France is",
    "The opposite of hot is",
    "The United States of",
    "The quick brown fox jumps over the lazy",
    "The best way to learn is",
    "The author of Hamlet is",
    "King and",
    "Adam and",
    "Romeo and",
    "Yes or",
    "Hola, me llamo",
    "for i in",
    "[1, 2",
    "The",
    "Dear",
)
"""Prompts after which models are sure of a token; some agree on it, and some are on their own."""

SURE = 1.0
"""The gap between the two best logits above which no rounding changes the first token."""
LEAST_SURE = 8
"""Tokens that a model must be sure of for its weights to be known by them."""


class Part(Enum):
    """What of a model a golden depends on."""

    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    """The chat template, and the tokenizer with it."""
    WEIGHTS = "weights"
    """The weights, and the tokenizer with them."""


@frozen(kw_only=True)
class Continuation:
    """The first greedy token after a prompt."""

    text: str
    margin: float | None = None
    """The gap between its logit and the next one, in float32; None: unknown."""

    @property
    def is_sure(self) -> bool:
        """Whether the same weights give that token wherever they are computed."""
        return self.margin is not None and self.margin >= SURE


@frozen(kw_only=True)
class Fingerprint:
    """What a model does."""

    model: str
    """The name it was served under."""
    prompt_tokens: Mapping[str, int]
    """Of each text as a prompt."""
    message_tokens: Mapping[str, int]
    """Of each text as the one message of a user; none for a model without a template."""
    continuations: Mapping[str, Continuation]
    """Of each prompt; none where only the tokenizer was at hand."""

    def to_text(self) -> str:
        """A fingerprint file's text."""
        return json.dumps(_converter.unstructure(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> Fingerprint:
        """The fingerprint in a file. Raises GoldenError."""
        try:
            return _converter.structure(json.loads(path.read_text("utf-8")), cls)
        except BaseValidationError as error:
            told = "; ".join(transform_error(error))
            raise GoldenError(f"the fingerprint {path.name} can't be read: {told}") from error
        except (OSError, ValueError) as error:
            raise GoldenError(f"the fingerprint {path.name} can't be read: {error}") from error

    def is_same(self, other: Fingerprint) -> bool:
        """Whether both tell the same of a model; how sure it is was not seen from outside."""
        return (
            self.prompt_tokens == other.prompt_tokens
            and self.message_tokens == other.message_tokens
            and {prompt: each.text for prompt, each in self.continuations.items()}
            == {prompt: each.text for prompt, each in other.continuations.items()}
        )


class Unknown(Exception):
    """The target can't be asked what its model is known by; ``str(error)`` says why."""


def fingerprints_directory(contract: str) -> Path:
    """The folder of a contract's fingerprints, which need not be there."""
    return resources.goldens_directory(contract) / FINGERPRINTS


def folder_name(model: str) -> str:
    """The name of a new fingerprint and of the folders of its goldens."""
    return model.rstrip("/").rpartition("/")[2].lower()


@define(slots=False)
class Recognizer:
    """Tells whether a target's model is that of a stored fingerprint."""

    contract: str
    target: Target
    _counts: dict[tuple[Endpoint, str], int] = field(factory=dict)
    _texts: dict[str, str] = field(factory=dict)
    _unknown: dict[Endpoint, Unknown] = field(factory=dict)
    _own: str | None = None

    @cached_property
    def stored(self) -> Mapping[str, Fingerprint]:
        """The fingerprints, by name."""
        paths = sorted(fingerprints_directory(self.contract).glob("*.json"))
        return {path.stem: Fingerprint.read(path) for path in paths}

    def difference(self, name: str, part: Part) -> str | None:
        """How the target's model shows that it isn't the one of a fingerprint; None if it may be.

        Raises GoldenError if there is no fingerprint ``name``.
        """
        stored = self.stored.get(name)
        if stored is None:
            raise GoldenError(f"there are goldens of {name}, and no fingerprint of it")
        try:
            return self._difference(stored, part)
        except Unknown as unknown:
            return str(unknown)

    def own(self) -> str:
        """The name of the target's fingerprint, which is written unless it is stored.

        Raises GoldenError for a target that can't be asked all of it.
        """
        if self._own is None:
            try:
                seen = self._fingerprint()
            except Unknown as unknown:
                raise GoldenError(f"goldens can't be written from this target: {unknown}") from None
            same = (name for name, each in self.stored.items() if each.is_same(seen))
            self._own = next(same, None) or self._write(seen)
        return self._own

    def _difference(self, stored: Fingerprint, part: Part) -> str | None:
        if part is Part.TEMPLATE:
            return self._other_count(CHAT, stored.message_tokens, "as a message")
        other = self._other_count(COMPLETIONS, stored.prompt_tokens, "as a prompt")
        if other is not None or part is Part.TOKENIZER:
            return other
        sure = {prompt: each for prompt, each in stored.continuations.items() if each.is_sure}
        if len(sure) < LEAST_SURE:
            return "too little is known of its weights"
        for prompt, wanted in sure.items():
            seen = self._continuation(prompt)
            if seen != wanted.text:
                return f"{prompt!r} is followed by {wanted.text!r} there and by {seen!r} here"
        return None

    def _other_count(self, endpoint: Endpoint, counts: Mapping[str, int], how: str) -> str | None:
        for text, wanted in counts.items():
            seen = self._tokens(endpoint, text)
            if seen != wanted:
                return f"{text!r} {how} is {wanted} tokens there and {seen} here"
        return None if counts else f"nothing is known of its texts {how}"

    def _fingerprint(self) -> Fingerprint:
        lacks_template = CHAT.capability not in self.target.capabilities
        messages: Sequence[str] = () if lacks_template else EASY_TEXTS
        return Fingerprint(
            model=self.target.model,
            prompt_tokens={text: self._tokens(COMPLETIONS, text) for text in EASY_TEXTS},
            message_tokens={text: self._tokens(CHAT, text) for text in messages},
            continuations={
                prompt: Continuation(text=self._continuation(prompt)) for prompt in PROMPTS
            },
        )

    def _write(self, seen: Fingerprint) -> str:
        name = folder_name(seen.model)
        path = fingerprints_directory(self.contract) / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(seen.to_text(), "utf-8")
        return name

    def _tokens(self, endpoint: Endpoint, text: str) -> int:
        if (endpoint, text) not in self._counts:
            self._counts[endpoint, text], _ = self._ask(endpoint, text)
        return self._counts[endpoint, text]

    def _continuation(self, prompt: str) -> str:
        if prompt not in self._texts:
            _, self._texts[prompt] = self._ask(COMPLETIONS, prompt)
        return self._texts[prompt]

    def _ask(self, endpoint: Endpoint, text: str) -> tuple[int, str]:
        """Prompt tokens and first token. Raises Unknown, at once where it was raised before."""
        if endpoint in self._unknown:
            raise self._unknown[endpoint]
        try:
            if endpoint.capability not in self.target.capabilities:
                raise Unknown(f"the target lacks {endpoint.path}, where models are told apart")
            try:
                answer = self.target.complete(endpoint, **endpoint.prompt(text), max_tokens=1)
            except (AssertionError, httpx2.RequestError) as error:
                told = str(error) or type(error).__name__
                raise Unknown(f"the target's model can't be told: {told}") from error
        except Unknown as unknown:
            self._unknown[endpoint] = unknown
            raise
        return answer.usage.prompt_tokens, answer.text


_converter = Converter(forbid_extra_keys=True)
