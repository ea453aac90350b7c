"""From a chat's messages to the tokens of its prompt, and to the images that stand in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import field, frozen

from caldrix.errors import CaldrixError
from caldrix.http.body import format_path
from caldrix.http.caldrix.messages import ImagePart, Message, Part
from caldrix.http.errors import ApiError, api_error
from caldrix.http.images import PlacedImage
from caldrix.http.service import Service
from caldrix.text.template import ChatTemplate, RenderedChat, render_chat
from caldrix.vision.layout import template_content
from caldrix.vision.parts import EncodedImage, check_image_count, check_text, read_image

PROMPT_FIELD = "messages"


@frozen
class ChatPrompt:
    """What a chat becomes before the engine sees it."""

    tokens: tuple[int, ...] = field(repr=False)
    images: list[PlacedImage]
    """In the order of their tokens; none any more once they have been seen."""
    system_moved: bool
    """Whether a system message had to move into the first user message."""


def chat_prompt(service: Service, messages: Sequence[Message]) -> ChatPrompt:
    """The prompt of a chat, which has tokens, and no more than fit. Raises ApiError.

    No image is decoded for it.
    """
    if service.template is None:
        raise ApiError(
            400,
            "the model has no chat template; send a prompt to /v1/completions",
            param=PROMPT_FIELD,
        )
    try:
        if service.images is None:
            rendered = _render(service.template, _as_texts(messages))
            images: list[PlacedImage] = []
            tokens = service.tokenizer.encode_prompt(rendered.text)
        else:
            chat, images = _with_images(messages)
            rendered = _render(service.template, chat)
            tokens = service.images.encode(rendered.text, images)
        if not tokens:
            raise ApiError(400, "the messages are an empty prompt", param=PROMPT_FIELD)
        service.engine.check_prompt(tokens)
    except CaldrixError as error:
        raise api_error(error, param=PROMPT_FIELD) from error
    return ChatPrompt(tuple(tokens), images, rendered.system_moved)


def _render(template: ChatTemplate, chat: Iterable[Mapping[str, object]]) -> RenderedChat:
    return render_chat(template, list(chat))


def _as_texts(messages: Iterable[Message]) -> Iterable[Mapping[str, object]]:
    """As the templates of text models see them."""
    for message in messages:
        yield {"role": message.role, "content": "\n".join(map(_text, message.parts))}


def _text(part: Part) -> str:
    if isinstance(part, ImagePart):
        raise ApiError(400, "this model takes text only", param=format_path(part.path))
    return part


def _with_images(
    messages: Sequence[Message],
) -> tuple[list[Mapping[str, object]], list[PlacedImage]]:
    """As the templates of models that see have them, and the images in their order."""
    parts = [part for message in messages for part in message.parts]
    check_image_count(sum(isinstance(part, ImagePart) for part in parts))
    images: list[PlacedImage] = []

    def read(part: Part) -> str | EncodedImage:
        if isinstance(part, str):
            check_text(part)
            return part
        place = format_path(part.path)
        try:
            image = read_image(part.image_url)
        except CaldrixError as error:
            raise api_error(error, param=place) from error
        images.append(PlacedImage(image, place))
        return image

    chat: list[Mapping[str, object]] = [
        {"role": message.role, "content": template_content([*map(read, message.parts)])}
        for message in messages
    ]
    return chat, images
