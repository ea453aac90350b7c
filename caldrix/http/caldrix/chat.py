"""POST /v1/chat/completions."""

from __future__ import annotations

import trio

from caldrix.http.body import parse_object
from caldrix.http.caldrix.chat_prompts import PROMPT_FIELD, ChatPrompt, chat_prompt
from caldrix.http.caldrix.generation import answer
from caldrix.http.caldrix.requests import ChatRequest, read_request, refuse_other_prompt
from caldrix.http.caldrix.responses import CHAT
from caldrix.http.exchange import Answer, EventStream, Incoming
from caldrix.http.service import Service


async def create(service: Service, incoming: Incoming) -> Answer | EventStream:
    """Answers the last message. Raises ApiError."""
    request, prompt = await trio.to_thread.run_sync(
        _read, service, incoming, limiter=service.text_threads
    )
    if prompt.system_moved:
        service.note_system_moved()
    return await answer(
        service,
        request,
        prompt.tokens,
        shape=CHAT,
        prompt_field=PROMPT_FIELD,
        watch=incoming.watch,
        images=prompt.images,
    )


def _read(service: Service, incoming: Incoming) -> tuple[ChatRequest, ChatPrompt]:
    body = parse_object(incoming.content_type, incoming.body)
    refuse_other_prompt(body, "prompt", PROMPT_FIELD)
    request = read_request(body, ChatRequest, served_name=service.served_name)
    return request, chat_prompt(service, request.messages)
