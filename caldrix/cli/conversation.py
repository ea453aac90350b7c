"""A conversation with a model, its images included: from messages to prompts, and to answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

from attrs import define, field, frozen

from caldrix.cli.pictures import Picture, check_spelling, read_picture, see_all
from caldrix.engine.engine import Engine, GenerationRequest
from caldrix.engine.sampling import SamplingSettings
from caldrix.models.lane import Features
from caldrix.models.loading import TextModel
from caldrix.text.assembler import TextAssembler
from caldrix.text.template import ChatTemplate, render_chat
from caldrix.vision.errors import TooManyImages
from caldrix.vision.eyes import Eyes
from caldrix.vision.layout import template_content
from caldrix.vision.parts import MAX_IMAGES, Detail


@frozen
class Message:
    """What was said, and the pictures before it."""

    role: str
    text: str
    pictures: tuple[Picture, ...] = ()

    def as_text(self) -> Mapping[str, object]:
        """As the templates of text models have it."""
        return {"role": self.role, "content": self.text}

    def in_parts(self) -> Mapping[str, object]:
        """As the templates of models that see have it."""
        images = [picture.image for picture in self.pictures]
        return {"role": self.role, "content": template_content([*images, self.text])}


@define(eq=False)
class Chat:
    """A conversation with a model, and how its answers are sampled."""

    model: TextModel
    engine: Engine
    sampling: SamplingSettings
    max_tokens: int | None = None
    system: str | None = None
    eyes: Eyes | None = None
    """None for a model that takes text only."""
    name: str = "the model"
    detail: Detail = Detail.HIGH
    """How much of the images that are put the model sees."""
    messages: list[Message] = field(factory=list)
    waiting: list[Picture] = field(factory=list)
    """Pictures that belong to the next message."""

    def reset(self) -> None:
        """Forgets the conversation and its pictures; the system text stays."""
        self.messages = []
        self.waiting = []

    def put_image(self, path: Path) -> None:
        """Puts an image before the next message. Raises InvalidImage or TooManyImages."""
        assert self.eyes is not None
        if len(self._pictures) + len(self.waiting) >= MAX_IMAGES:
            raise TooManyImages(
                f"a conversation takes at most {MAX_IMAGES} images; /drop forgets those that wait, "
                "/reset all of it"
            )
        self.waiting.append(read_picture(path, self.detail))

    async def answer(self, text: str) -> AsyncGenerator[str, None]:
        """The model's answer to ``text``, as it comes; both join the conversation.

        What was said before a stop by the user is kept. Of a message without an answer nothing is:
        its pictures wait on. A model without a chat template continues ``text`` instead, and keeps
        nothing.
        """
        if self.model.template is None:
            async with aclosing(self._generate(self.model.tokenizer.encode(text))) as pieces:
                async for piece in pieces:
                    yield piece
            return
        asked = Message("user", text, tuple(self.waiting))
        prompt = self._prompt(self.model.template, asked)
        features = await self._look(prompt, [*self._pictures, *asked.pictures])
        said: list[str] = []
        try:
            async with aclosing(self._generate(prompt, features)) as pieces:
                async for piece in pieces:
                    said.append(piece)
                    yield piece
        finally:
            if said:
                self.messages += [asked, Message("assistant", "".join(said))]
                self.waiting = []

    @property
    def _pictures(self) -> list[Picture]:
        return [picture for message in self.messages for picture in message.pictures]

    def _prompt(self, template: ChatTemplate, asked: Message) -> list[int]:
        system = [Message("system", self.system)] if self.system else []
        messages = [*system, *self.messages, asked]
        if self.eyes is None:
            rendered = render_chat(template, [message.as_text() for message in messages])
            return self.model.tokenizer.encode_prompt(rendered.text)
        for said in self.messages:
            check_spelling("what was said before", said.text, "/reset forgets it")
        check_spelling("the message", asked.text)
        rendered = render_chat(template, [message.in_parts() for message in messages])
        images = [picture.image for message in messages for picture in message.pictures]
        return self.eyes.encode(rendered.text, images)

    async def _look(self, prompt: list[int], pictures: Sequence[Picture]) -> Features | None:
        if self.eyes is None or not pictures:
            return None
        # Before any image is decoded.
        self.engine.check_prompt(prompt)
        return self.eyes.features(prompt, await see_all(self.eyes, pictures))

    async def _generate(
        self, prompt: list[int], features: Features | None = None
    ) -> AsyncGenerator[str, None]:
        tokenizer = self.model.tokenizer
        assembler = TextAssembler(tokenizer)
        request = GenerationRequest(
            tuple(prompt), self.max_tokens, self.sampling, tokenizer.end_ids, features=features
        )
        async with self.engine.submit(request) as generation:
            async for token in generation:
                if piece := assembler.push(token):
                    yield piece
        if tail := assembler.finish():
            yield tail
