"""What is answered: the document's captured bytes, streams, stop strings, settings, ids."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

import httpx2
import pytest
import trio
from structlog.testing import capture_logs

from caldrix.engine.sampling import SamplingSettings
from caldrix.http.caldrix.requests import CompletionRequest, read_request
from tests.support import miniature
from tests.support.scripted import endless, reply
from tests.support.serving import MODEL, Running, never_ends, says, scripted, serving, trio_test

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
# "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n": 3 special tokens, 18 bytes.
CHAT_PROMPT_TOKENS = 21


async def chat(server: Running, **fields: object) -> httpx2.Response:
    return await server.client.post(CHAT, json={"model": MODEL, "messages": MESSAGES, **fields})


async def text(server: Running, **fields: object) -> httpx2.Response:
    return await server.client.post(TEXT, json={"model": MODEL, "prompt": "hi", **fields})


def at_rest(body: str) -> str:
    """An answer without what differs between two runs."""
    return re.sub(r'"created":\d+', '"created":0', body)


def chunks(response: httpx2.Response) -> list[dict[str, object]]:
    """The objects of a stream that ended as it should."""
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"
    *events, last, rest = response.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    return [json.loads(event.removeprefix("data: ")) for event in events]


def streamed_text(objects: Sequence[dict[str, object]]) -> str:
    return "".join(_content(chunk) for chunk in objects)


def _content(chunk: dict[str, object]) -> str:
    choices = chunk["choices"]
    assert isinstance(choices, list)
    if not choices:
        return ""
    choice = choices[0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content", ""))


@trio_test
async def test_whole_answers_to_the_byte() -> None:
    async with serving(says("Grüße ✓")) as server:
        assert at_rest((await chat(server)).text) == (
            '{"choices":[{"finish_reason":"stop","index":0,"message":{"content":"Grüße ✓",'
            '"role":"assistant"}}],"created":0,"id":"chatcmpl-1","model":"tiny/model",'
            '"object":"chat.completion","usage":{"completion_tokens":11,"prompt_tokens":21,'
            '"total_tokens":32}}'
        )
        assert at_rest((await text(server, max_tokens=2)).text) == (
            '{"choices":[{"finish_reason":"length","index":0,"text":"Gr"}],"created":0,'
            '"id":"cmpl-2","model":"tiny/model","object":"text_completion",'
            '"usage":{"completion_tokens":2,"prompt_tokens":2,"total_tokens":4}}'
        )


@trio_test
async def test_streams_to_the_byte() -> None:
    async with serving(says("ab")) as server:
        frame = '"created":0,"id":"chatcmpl-1","model":"tiny/model"'
        kind = '"object":"chat.completion.chunk"'
        assert at_rest((await chat(server, stream=True)).text) == (
            'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null,"index":0}],'
            f"{frame},{kind}}}\n\n"
            'data: {"choices":[{"delta":{"content":"b"},"finish_reason":null,"index":0}],'
            f"{frame},{kind}}}\n\n"
            'data: {"choices":[{"delta":{},"finish_reason":"stop","index":0}],'
            f"{frame},{kind}}}\n\n"
            "data: [DONE]\n\n"
        )
        frame = '"created":0,"id":"cmpl-2","model":"tiny/model","object":"text_completion"'
        options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}
        assert at_rest((await text(server, **options)).text) == (
            f'data: {{"choices":[{{"finish_reason":null,"index":0,"text":"a"}}],{frame}}}\n\n'
            f'data: {{"choices":[{{"finish_reason":"length","index":0,"text":""}}],{frame}}}\n\n'
            f'data: {{"choices":[],{frame},"usage":{{"completion_tokens":1,"prompt_tokens":2,'
            '"total_tokens":3}}\n\n'
            "data: [DONE]\n\n"
        )


@trio_test
async def test_models_and_health() -> None:
    async with serving(says("ok")) as server:
        response = await server.client.get("/v1/models")
        assert response.content == (
            b'{"data":[{"id":"tiny/model","object":"model","owned_by":"inferno"}],"object":"list"}'
        )
        for path in ("/healthz", "/health"):
            response = await server.client.get(path)
            assert (response.text, response.headers["content-type"]) == (
                "ok",
                "text/plain; charset=utf-8",
            )
        server.service.engine.stop()
        response = await server.client.get("/healthz")
        assert response.status_code == 503
        assert response.json()["error"]["message"] == "the engine is unavailable"


@trio_test
async def test_the_ids_of_tokens() -> None:
    said = "aé<b"
    ids = miniature.ids(said)
    async with serving(says(said)) as server:
        for post, shape in ((chat, "message"), (text, "text")):
            body = (await post(server, return_token_ids=True)).json()
            assert shape in body["choices"][0]
            assert body["choices"][0]["token_ids"] == ids
            objects = chunks(await post(server, return_token_ids=True, stream=True))
            # The two bytes of é come with the chunk that has its text.
            assert [chunk["token_ids"] for chunk in objects] == [
                ids[:1],
                ids[1:3],
                ids[3:4],
                ids[4:],
                [],
            ]


@trio_test
async def test_the_ids_of_tokens_that_never_became_text() -> None:
    said = miniature.ids("a") + miniature.ids(miniature.START) + miniature.ids("é")[:1]
    async with serving(scripted(reply(said, miniature.end_id()))) as server:
        objects = chunks(await text(server, return_token_ids=True, stream=True))
        assert streamed_text(objects) == "a\N{REPLACEMENT CHARACTER}"
        assert [chunk["token_ids"] for chunk in objects] == [said[:1], said[1:], []]
        objects = chunks(await text(server, return_token_ids=True, stream=True, max_tokens=2))
        assert [chunk["token_ids"] for chunk in objects] == [said[:1], said[1:2]]


@pytest.mark.parametrize(
    ("stop", "expected", "tokens"),
    [
        ("wor", "hello ", 9),
        (["zzz", "o"], "hell", 5),
        (["lo w", "o world"], "hel", 7),
        ("h", "", 1),
        ("worldly", "hello world", 11),
        (["", None][1], "hello world", 11),
    ],
)
@trio_test
async def test_stop_strings(stop: object, expected: str, tokens: int) -> None:
    async with serving(says("hello world")) as server:
        body = (await text(server, stop=stop)).json()
        assert body["choices"][0]["text"] == expected
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["usage"]["completion_tokens"] == tokens
        objects = chunks(await text(server, stop=stop, stream=True))
        assert streamed_text(objects) == expected
        await server.wait_rows_free()


@trio_test
async def test_ignore_eos_goes_on_past_the_end() -> None:
    end = miniature.end_id()
    script = reply([*miniature.ids("a"), end, *miniature.ids("b")], end)
    async with serving(scripted(script)) as server:
        body = (await text(server, ignore_eos=True, max_tokens=5, return_token_ids=True)).json()
        assert body["choices"][0]["text"] == "ab"
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["choices"][0]["token_ids"] == [
            *miniature.ids("a"),
            end,
            *miniature.ids("b"),
            end,
            end,
        ]
        assert (await text(server, ignore_eos=False)).json()["choices"][0]["text"] == "a"


@trio_test
async def test_prompts_reach_the_model_as_they_should() -> None:
    seen: list[list[int]] = []

    def script(prompt: Sequence[int], generated: Sequence[int]) -> int:
        seen.append(list(prompt))
        return miniature.end_id()

    async with serving(scripted(script)) as server:
        parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        await chat(server, messages=[{"role": "user", "content": parts}])
        await text(server, prompt="é<|im_end|>")
        await text(server, prompt=[5, 0, 259])
    rendered = "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    assert seen == [miniature.ids(rendered), miniature.ids("é<|im_end|>"), [5, 0, 259]]


@trio_test
async def test_a_system_message_moves_and_the_log_says_so_once() -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
        "{% endif %}{{ m.role + ':' + m.content + ';' }}{% endfor %}"
    )
    seen: list[str] = []

    def script(prompt: Sequence[int], generated: Sequence[int]) -> int:
        seen.append(miniature.tokenizer().decode(prompt))
        return miniature.end_id()

    messages = [{"role": "system", "content": "Be brief."}, *MESSAGES]
    with capture_logs() as logs:
        async with serving(scripted(script), template=template) as server:
            for _ in range(2):
                assert (await chat(server, messages=messages)).status_code == 200
            lonely = await chat(server, messages=messages[:1])
            assert lonely.json()["error"]["message"] == "no system"
    assert seen == ["user:Be brief.\n\nhi;"] * 2
    assert [entry["event"] for entry in logs].count("system_message_moved") == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, SamplingSettings(2.0, 5, repetition_penalty=1.3, seed=11)),
        (
            {"temperature": 0, "top_k": None, "seed": None},
            SamplingSettings(0.0, 5, repetition_penalty=1.3, seed=11),
        ),
        (
            {"top_k": -1, "seed": -1, "top_p": 0.5, "min_p": 1, "repetition_penalty": 1},
            SamplingSettings(2.0, 0, top_p=0.5, min_p=1.0, seed=None),
        ),
        ({"seed": 2**80}, SamplingSettings(2.0, 5, repetition_penalty=1.3, seed=2**80)),
    ],
)
def test_a_request_overrides_the_servers_sampling_field_by_field(
    fields: dict[str, object], expected: SamplingSettings
) -> None:
    defaults = SamplingSettings(temperature=2.0, top_k=5, repetition_penalty=1.3, seed=11)
    body = {"model": MODEL, "prompt": "hi", **fields}
    request = read_request(body, CompletionRequest, served_name=MODEL)
    assert request.sampling(defaults) == expected


@trio_test
async def test_a_request_without_settings_is_sampled_with_the_servers() -> None:
    hot = SamplingSettings(temperature=1e9, seed=3)
    async with serving(scripted(endless(0)), sampling=hot) as server:
        first, second, cold = [
            (await text(server, max_tokens=24, return_token_ids=True, **fields)).json()
            for fields in ({}, {"temperature": 1e9, "seed": 3}, {"temperature": 0})
        ]
        ids = first["choices"][0]["token_ids"]
        assert len(set(ids)) > 1
        assert second["choices"][0]["token_ids"] == ids
        assert cold["choices"][0]["token_ids"] == [0] * 24


@trio_test
async def test_a_seed_fixes_the_text() -> None:
    async with serving(scripted(endless(0))) as server:
        hot = {"temperature": 1e9, "max_tokens": 24, "return_token_ids": True}

        async def sample(seed: int) -> list[int]:
            body = (await text(server, seed=seed, **hot)).json()
            ids: list[int] = body["choices"][0]["token_ids"]
            return ids

        first = await sample(1)
        assert await sample(1) == first
        assert await sample(2) != first


@trio_test
async def test_streamed_and_whole_are_the_same_text() -> None:
    said = "naïve 😀 <|im_start|>—end"
    async with serving(says(said)) as server:
        whole = (await chat(server)).json()["choices"][0]["message"]["content"]
        assert whole == "naïve 😀 —end"
        assert streamed_text(chunks(await chat(server, stream=True))) == whole


@trio_test
async def test_two_at_a_time() -> None:
    async with serving(never_ends(), rows=2) as server:
        finished: list[str] = []

        async def one(name: str, tokens: int) -> None:
            body = (await text(server, max_tokens=tokens)).json()
            assert body["choices"][0]["text"] == "a" * tokens
            finished.append(name)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, "long", 2000)
            await trio.sleep(0.02)
            nursery.start_soon(one, "short", 2)
        assert finished == ["short", "long"]
