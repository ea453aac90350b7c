"""POST /v1/chat/completions."""

from __future__ import annotations

import trio
from attrs import evolve

from caldrix.http.body import parse_object
from caldrix.http.caldrix.chat_prompts import PROMPT_FIELD, ChatPrompt, chat_prompt
from caldrix.http.caldrix.generation import answer
from caldrix.http.caldrix.requests import ChatRequest, read_request, refuse_other_prompt
from caldrix.http.caldrix.responses import CHAT
from caldrix.http.exchange import Answer, EventStream, Incoming
from caldrix.http.service import Service


async def create(service: Service, incoming: Incoming) -> Answer | EventStream:
    """Answers the last message. Raises ApiError."""
    watch = incoming.watch
    request, prompt = await trio.to_thread.run_sync(
        _read, service, incoming, limiter=service.text_threads
    )
    # A body with images is large, and an answer may wait for long.
    del incoming
    if prompt.system_moved:
        service.note_system_moved()
    return await answer(
        service,
        request,
        prompt.tokens,
        shape=CHAT,
        prompt_field=PROMPT_FIELD,
        watch=watch,
        images=prompt.images,
    )


def _read(service: Service, incoming: Incoming) -> tuple[ChatRequest, ChatPrompt]:
    body = parse_object(incoming.content_type, incoming.body)
    refuse_other_prompt(body, "prompt", PROMPT_FIELD)
    request = read_request(body, ChatRequest, served_name=service.served_name)
    prompt = chat_prompt(service, request.messages)
    # For the same reason: images are in them as their URLs.
    return evolve(request, messages=()), prompt
