"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

import trio
from attrs import asdict

from caldrix.http.body import parse_object
from caldrix.http.caldrix.generation import answer
from caldrix.http.caldrix.messages import Message
from caldrix.http.caldrix.requests import ChatRequest, read_request, refuse_other_prompt
from caldrix.http.caldrix.responses import CHAT
from caldrix.http.errors import ApiError, api_error
from caldrix.http.exchange import Answer, EventStream, Incoming
from caldrix.http.service import Service
from caldrix.text.errors import TemplateError
from caldrix.text.template import ChatTemplate, render_chat
from caldrix.text.tokenizer import Tokenizer

_PROMPT_FIELD = "messages"


async def create(service: Service, incoming: Incoming) -> Answer | EventStream:
    """Answers the last message. Raises ApiError."""
    body = parse_object(incoming.content_type, incoming.body)
    refuse_other_prompt(body, "prompt", _PROMPT_FIELD)
    request = read_request(body, ChatRequest, served_name=service.served_name)
    if service.template is None:
        raise ApiError(
            400,
            "the model has no chat template; send a prompt to /v1/completions",
            param=_PROMPT_FIELD,
        )
    try:
        prompt, system_moved = await trio.to_thread.run_sync(
            _render,
            service.template,
            service.tokenizer,
            request.messages,
            limiter=service.text_threads,
        )
    except TemplateError as error:
        raise api_error(error, param=_PROMPT_FIELD) from error
    if system_moved:
        service.note_system_moved()
    if not prompt:
        raise ApiError(400, "the messages are an empty prompt", param=_PROMPT_FIELD)
    return await answer(service, request, prompt, shape=CHAT, prompt_field=_PROMPT_FIELD)


def _render(
    template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[tuple[int, ...], bool]:
    rendered = render_chat(template, [asdict(message) for message in messages])
    return tuple(tokenizer.encode_prompt(rendered.text)), rendered.system_moved
