"""POST /v1/chat/completions."""

from __future__ import annotations

import trio
from attrs import asdict

from caldrix.http.body import parse_object
from caldrix.http.caldrix.generation import answer
from caldrix.http.caldrix.requests import ChatRequest, read_request, refuse_other_prompt
from caldrix.http.caldrix.responses import CHAT
from caldrix.http.errors import ApiError, api_error
from caldrix.http.exchange import Answer, EventStream, Incoming
from caldrix.http.service import Service
from caldrix.text.errors import TemplateError
from caldrix.text.template import render_chat

_PROMPT_FIELD = "messages"


async def create(service: Service, incoming: Incoming) -> Answer | EventStream:
    """Answers the last message. Raises ApiError."""
    request, prompt, system_moved = await trio.to_thread.run_sync(
        _read, service, incoming, limiter=service.text_threads
    )
    if system_moved:
        service.note_system_moved()
    return await answer(
        service,
        request,
        prompt,
        shape=CHAT,
        prompt_field=_PROMPT_FIELD,
        watch=incoming.watch,
    )


def _read(service: Service, incoming: Incoming) -> tuple[ChatRequest, tuple[int, ...], bool]:
    """The request, its prompt's tokens, and whether a system message had to move."""
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
        rendered = render_chat(service.template, [asdict(message) for message in request.messages])
    except TemplateError as error:
        raise api_error(error, param=_PROMPT_FIELD) from error
    prompt = tuple(service.tokenizer.encode_prompt(rendered.text))
    if not prompt:
        raise ApiError(400, "the messages are an empty prompt", param=_PROMPT_FIELD)
    return request, prompt, rendered.system_moved
