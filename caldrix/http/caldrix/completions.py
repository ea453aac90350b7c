"""POST /v1/completions."""

from __future__ import annotations

import trio

from caldrix.http.body import parse_object
from caldrix.http.caldrix.generation import answer
from caldrix.http.caldrix.requests import CompletionRequest, read_request, refuse_other_prompt
from caldrix.http.caldrix.responses import TEXT
from caldrix.http.decoding import spell
from caldrix.http.errors import ApiError
from caldrix.http.exchange import Answer, EventStream, Incoming
from caldrix.http.service import Service

_PROMPT_FIELD = "prompt"


async def create(service: Service, incoming: Incoming) -> Answer | EventStream:
    """Goes on with the prompt. Raises ApiError."""
    request, prompt = await trio.to_thread.run_sync(
        _read, service, incoming, limiter=service.text_threads
    )
    return await answer(
        service,
        request,
        prompt,
        shape=TEXT,
        prompt_field=_PROMPT_FIELD,
        watch=incoming.watch,
    )


def _read(service: Service, incoming: Incoming) -> tuple[CompletionRequest, tuple[int, ...]]:
    """The request, and its prompt's tokens."""
    body = parse_object(incoming.content_type, incoming.body)
    refuse_other_prompt(body, "messages", _PROMPT_FIELD)
    request = read_request(body, CompletionRequest, served_name=service.served_name)
    if not isinstance(request.prompt, str):
        _check_vocabulary(request.prompt, service.vocab_size)
        return request, request.prompt
    prompt = tuple(service.tokenizer.encode(request.prompt))
    if not prompt:
        raise ApiError(400, "holds no token of this model", param=_PROMPT_FIELD)
    return request, prompt


def _check_vocabulary(prompt: tuple[int, ...], vocab_size: int) -> None:
    for index, token in enumerate(prompt):
        if not 0 <= token < vocab_size:
            raise ApiError(
                400,
                f"must be a token id from 0 to {vocab_size - 1}, got {spell(token)}",
                param=f"{_PROMPT_FIELD}[{index}]",
            )
