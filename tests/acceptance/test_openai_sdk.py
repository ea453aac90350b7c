"""The official openai SDK, unchanged, against `caldrix serve` on real weights."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of Japan?"}
]
ANSWER = "The capital of Japan is Tokyo."


@pytest.fixture
def client(smollm2_server: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{smollm2_server}/v1", api_key="none needed", max_retries=0)


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(texts) == ANSWER
    assert len(texts) > 3
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None


def test_text_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=1, temperature=0
    )
    assert answer.choices[0].text == " Paris"
    assert answer.choices[0].finish_reason == "length"


def test_a_refusal_raises_the_sdks_own_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)
    assert refused.value.param == "model"
    assert MODEL in str(refused.value)


def test_async_client(smollm2_server: str) -> None:
    async def ask() -> tuple[str | None, str]:
        async with openai.AsyncOpenAI(
            base_url=f"{smollm2_server}/v1", api_key="none needed", max_retries=0
        ) as client:
            answer = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
            stream = await client.chat.completions.create(
                model=MODEL, messages=MESSAGES, stream=True
            )
            texts = [
                chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices
            ]
            return answer.choices[0].message.content, "".join(texts)

    assert asyncio.run(ask()) == (ANSWER, ANSWER)


def test_a_base_model_completes_and_refuses_to_chat(gemma3_server: str) -> None:
    client = openai.OpenAI(base_url=f"{gemma3_server}/v1", api_key="none needed", max_retries=0)
    (model,) = client.models.list()
    completion = client.completions.create(model=model.id, prompt="1, 2, 3, 4, 5,", max_tokens=6)
    assert completion.choices[0].text == " 6, 7,"
    with pytest.raises(openai.BadRequestError, match="/v1/completions"):
        client.chat.completions.create(model=model.id, messages=MESSAGES)
