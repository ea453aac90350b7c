"""The openai SDK, unchanged: answers, streams, and errors as its own exceptions."""

from __future__ import annotations

import openai
import pytest
import trio

from tests.support.scripted import endless
from tests.support.serving import MODEL, Running, says, scripted, serving, trio_test

USER = {"role": "user", "content": "hi"}


def sdk(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def converse(client: openai.OpenAI) -> None:
    with client:
        assert [model.id for model in client.models.list()] == [MODEL]
        chat = client.chat.completions.create(model=MODEL, messages=[USER])  # type: ignore[list-item]  # a plain dict
        assert chat.choices[0].message.content == "hello"
        assert chat.usage is not None
        assert chat.usage.completion_tokens == 5
        chunks = list(
            client.completions.create(
                model=MODEL, prompt="hi", stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == "hello"
        assert chunks[-2].choices[0].finish_reason == "stop"
        assert chunks[-1].usage is not None
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model=MODEL, prompt="hi", top_p=2)
        assert (caught.value.param, caught.value.type) == ("top_p", "invalid_request_error")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model=MODEL, input="hi")


def fail_while_streaming(client: openai.OpenAI) -> None:
    with client:
        stream = client.completions.create(model=MODEL, prompt="hi", stream=True)
        assert next(iter(stream)).choices[0].text
        with pytest.raises(openai.APIError, match="the engine failed during the request"):
            list(stream)
        with pytest.raises(openai.InternalServerError):
            client.completions.create(model=MODEL, prompt="hi")


@trio_test
async def test_the_sdk_converses() -> None:
    async with serving(says("hello")) as server:
        await trio.to_thread.run_sync(converse, sdk(server))


@trio_test
async def test_the_sdk_raises_what_a_stream_ends_with() -> None:
    async with serving(scripted(endless(0), fail_at=(3, 4))) as server:
        await trio.to_thread.run_sync(fail_while_streaming, sdk(server))
