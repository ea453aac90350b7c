"""Every refusal of a request, as the client sees it: status, message and field."""

from __future__ import annotations

import json

import httpx2
import pytest

from tests.support.serving import MODEL, never_ends, says, serving, trio_test

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
USER = {"role": "user", "content": "hi"}
GONE = object()


def chat(**changes: object) -> tuple[str, dict[str, object]]:
    return CHAT, _without_gone({"model": MODEL, "messages": [USER], **changes})


def text(**changes: object) -> tuple[str, dict[str, object]]:
    return TEXT, _without_gone({"model": MODEL, "prompt": "hi", **changes})


def content(*parts: object) -> tuple[str, dict[str, object]]:
    return chat(messages=[USER, {"role": "user", "content": list(parts)}])


def message(**fields: object) -> tuple[str, dict[str, object]]:
    return chat(messages=[fields])


def _without_gone(body: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in body.items() if value is not GONE}


def not_implemented(field: str, neutral: str) -> str:
    return f"{field} is not implemented; it is accepted only when absent, {neutral}"


PART_TYPE = "a content part's type must be text or image_url, "
ONE_PROMPT = "must be one string or one array of token ids; an array of "

REFUSALS: list[tuple[tuple[str, dict[str, object]], str, str]] = [
    # The model's name
    (chat(model=GONE), "is required", "model"),
    (chat(model=None), "must be a string, got null", "model"),
    (chat(model=["a"]), "must be a string, got an array", "model"),
    (chat(model="gpt-4"), 'this server serves "tiny/model", not "gpt-4"', "model"),
    (text(model="x" * 100), f'this server serves "tiny/model", not "{"x" * 60}…"', "model"),
    # The other endpoint's field
    (chat(prompt="hi"), "prompt is refused here; send messages", "prompt"),
    (chat(prompt="hi", messages=GONE), "prompt is refused here; send messages", "prompt"),
    (text(messages=[USER]), "messages is refused here; send prompt", "messages"),
    # Messages
    (chat(messages=GONE), "is required", "messages"),
    (chat(messages="hi"), 'must be an array of messages, got "hi"', "messages"),
    (chat(messages=[]), "must hold 1 to 256 messages, got 0", "messages"),
    (chat(messages=[USER] * 257), "must hold 1 to 256 messages, got 257", "messages"),
    (
        chat(messages=[USER, "hi"]),
        'must be an object with role and content, got "hi"',
        "messages[1]",
    ),
    (message(content="hi"), "is required", "messages[0].role"),
    (message(role="", content="hi"), 'must be a role\'s name, got ""', "messages[0].role"),
    (message(role=3, content="hi"), "must be a role's name, got 3", "messages[0].role"),
    (
        message(role="assistant", content=None),
        "is required: a string or an array of parts",
        "messages[0].content",
    ),
    (
        message(role="user", content=7),
        "must be a string or an array of parts, got 7",
        "messages[0].content",
    ),
    (
        message(role="user", content=[]),
        "must be a string or an array of parts, got an empty array",
        "messages[0].content",
    ),
    (
        message(role="assistant", content=None, tool_calls=[{"id": "1"}]),
        "tool calls are not implemented",
        "messages[0].tool_calls",
    ),
    (
        message(role="assistant", content="", function_call={"name": "f", "arguments": "{}"}),
        "tool calls are not implemented",
        "messages[0].function_call",
    ),
    # Content parts
    (content("hi"), 'must be a content part, an object, got "hi"', "messages[1].content[0]"),
    (content({"text": "hi"}), PART_TYPE + "it has none", "messages[1].content[0]"),
    (
        content({"type": "text", "text": "a"}, {"type": "audio"}),
        PART_TYPE + 'got "audio"',
        "messages[1].content[1]",
    ),
    (
        content({"type": "text", "text": 1}),
        "a text part's text must be a string, got 1",
        "messages[1].content[0]",
    ),
    (
        content({"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}),
        "this model takes text only",
        "messages[1].content[1]",
    ),
    # Prompts
    (text(prompt=GONE), "is required", "prompt"),
    (text(prompt=None), "must be a string or an array of token ids, got null", "prompt"),
    (text(prompt={}), "must be a string or an array of token ids, got an object", "prompt"),
    (text(prompt=""), "must not be empty", "prompt"),
    (text(prompt=[]), "must not be empty", "prompt"),
    (text(prompt=["a", "b"]), ONE_PROMPT + "strings is not implemented", "prompt"),
    (text(prompt=[[1], [2]]), ONE_PROMPT + "arrays is not implemented", "prompt"),
    (text(prompt=[1, True]), "must be a token id, an integer, got true", "prompt[1]"),
    (text(prompt=[1, 2.0]), "must be a token id, an integer, got 2.0", "prompt[1]"),
    (text(prompt=[0, -1]), "must be a token id from 0 to 259, got -1", "prompt[1]"),
    (text(prompt=[0, 259, 260]), "must be a token id from 0 to 259, got 260", "prompt[2]"),
    # The length of the answer
    (text(max_tokens=0), "must be an integer >= 1, got 0", "max_tokens"),
    (text(max_tokens=1.0), "must be an integer >= 1, got 1.0", "max_tokens"),
    (text(max_tokens=True), "must be an integer >= 1, got true", "max_tokens"),
    (text(max_tokens="8"), 'must be an integer >= 1, got "8"', "max_tokens"),
    (chat(max_completion_tokens=-3), "must be an integer >= 1, got -3", "max_completion_tokens"),
    (
        chat(max_tokens=1, max_completion_tokens=2),
        "is another name of max_tokens, got 2 and 1; send one of them",
        "max_completion_tokens",
    ),
    # Stop strings
    (text(stop=1), "must be a string or an array of strings, got 1", "stop"),
    (text(stop=""), "must be 1 to 256 bytes, got 0", "stop"),
    (text(stop="é" * 129), "must be 1 to 256 bytes, got 258", "stop"),
    (text(stop=["a"] * 5), "must be one string or up to 4, got 5", "stop"),
    (text(stop=["a", None]), "must be a string, got null", "stop[1]"),
    (text(stop=["a", ""]), "must be 1 to 256 bytes, got 0", "stop[1]"),
    # Flags
    (text(stream="true"), 'must be true or false, got "true"', "stream"),
    (text(ignore_eos=1), "must be true or false, got 1", "ignore_eos"),
    (text(return_token_ids=0), "must be true or false, got 0", "return_token_ids"),
    (text(stream=True, stream_options=[]), "must be an object, got an array", "stream_options"),
    (
        text(stream=True, stream_options={"include_usage": "yes"}),
        'must be true or false, got "yes"',
        "stream_options.include_usage",
    ),
    (
        text(stream_options={"include_usage": True}),
        'is only taken together with "stream": true',
        "stream_options",
    ),
    # Sampling
    (chat(top_p=2), "must be 0 < p <= 1, got 2", "top_p"),
    (chat(top_p=0), "must be 0 < p <= 1, got 0", "top_p"),
    (chat(top_p="1"), 'must be 0 < p <= 1, got "1"', "top_p"),
    (text(min_p=-0.5), "must be 0 <= p <= 1, got -0.5", "min_p"),
    (text(temperature=-1), "must be a finite number >= 0, got -1", "temperature"),
    (text(temperature=True), "must be a finite number >= 0, got true", "temperature"),
    (text(temperature=10**330), f"must be a finite number >= 0, got 1{'0' * 59}…", "temperature"),
    (text(top_k=-2), "must be an integer >= 0, or -1, got -2", "top_k"),
    (text(top_k=1.5), "must be an integer >= 0, or -1, got 1.5", "top_k"),
    (text(repetition_penalty=0), "must be a finite number > 0, got 0", "repetition_penalty"),
    (text(seed=-2), "must be a non-negative integer, or -1, got -2", "seed"),
    (text(seed=1.0), "must be a non-negative integer, or -1, got 1.0", "seed"),
    # What is not implemented
    (text(n=2), not_implemented("n", "null or 1"), "n"),
    (text(n=True), not_implemented("n", "null or 1"), "n"),
    (
        text(presence_penalty=0.1),
        not_implemented("presence_penalty", "null or 0"),
        "presence_penalty",
    ),
    (
        text(frequency_penalty=-1),
        not_implemented("frequency_penalty", "null or 0"),
        "frequency_penalty",
    ),
    (chat(top_logprobs=3), not_implemented("top_logprobs", "null or 0"), "top_logprobs"),
    (chat(top_logprobs=False), not_implemented("top_logprobs", "null or 0"), "top_logprobs"),
    (text(best_of=2), not_implemented("best_of", "null or 1"), "best_of"),
    (chat(logprobs=True), not_implemented("logprobs", "null, false or 0"), "logprobs"),
    (text(logprobs=5), not_implemented("logprobs", "null, false or 0"), "logprobs"),
    (text(logit_bias={"1": 5}), not_implemented("logit_bias", "null or {}"), "logit_bias"),
    (chat(tools=[{}]), not_implemented("tools", "null or []"), "tools"),
    (chat(tool_choice="auto"), not_implemented("tool_choice", 'null or "none"'), "tool_choice"),
    (
        chat(response_format={"type": "json_object"}),
        not_implemented("response_format", 'null or {"type": "text"}'),
        "response_format",
    ),
]

# Fields at values that change nothing, and fields that no page names.
ACCEPTED = [
    chat(
        n=1,
        presence_penalty=0,
        frequency_penalty=0.0,
        top_logprobs=0,
        best_of=1,
        logprobs=False,
        logit_bias={},
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
    ),
    text(logprobs=0, user="someone", seed=7, suffix="s", echo=True, anything={"at": ["all"]}),
    chat(
        **dict.fromkeys(
            [
                *("n", "presence_penalty", "frequency_penalty", "top_logprobs", "best_of"),
                *("logprobs", "logit_bias", "tools", "tool_choice", "response_format"),
                *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed"),
                *("stream", "stream_options", "stop", "max_tokens", "max_completion_tokens"),
                *("ignore_eos", "return_token_ids", "prompt"),
            ]
        )
    ),
    chat(top_k=-1, seed=-1, top_p=1, min_p=1, temperature=0, repetition_penalty=1e-3),
    chat(max_tokens=3, max_completion_tokens=3, stop=[]),
    chat(messages=[{"role": "critic", "content": "", "name": "n", "tool_calls": []}]),
    chat(messages=[USER] * 256, stop=["a" * 256, "b", "c", "d"]),
    content({"type": "text", "text": "<image>"}),
    text(prompt=[0, 259]),
    text(stream=True, stream_options={"include_usage": False, "include_obfuscation": True}),
]


def error(response: httpx2.Response) -> dict[str, object]:
    """The error object of an answer that has nothing else, in the bytes the document shows."""
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert response.text == json.dumps(
        body, separators=(",", ":"), sort_keys=True, ensure_ascii=False
    )
    assert list(body) == ["error"]
    fault: dict[str, object] = body["error"]
    assert sorted(fault) == ["code", "message", "param", "type"]
    return fault


def told(message: str, param: str | None, kind: str = "invalid_request_error") -> dict[str, object]:
    return {"code": None, "message": message, "param": param, "type": kind}


@trio_test
async def test_every_refusal() -> None:
    async with serving(says("ok")) as server:
        for (path, body), expected, param in REFUSALS:
            response = await server.client.post(path, json=body)
            assert response.status_code == 400, (body, response.text)
            assert error(response) == told(expected, param), body
        # Not one of them took a number.
        path, body = text()
        assert (await server.client.post(path, json=body)).json()["id"] == "cmpl-1"


@trio_test
async def test_everything_that_is_accepted() -> None:
    async with serving(says("ok"), context=8192) as server:
        for path, body in ACCEPTED:
            response = await server.client.post(path, json=body)
            assert response.status_code == 200, (body, response.text)


# Numbers that are no 64-bit floats, or that Python would not read: (field, spelling, refusal)
BIG = "9" * 4300
NUMBERS = [
    ("temperature", "1e309", "must be a finite number >= 0, got 1e309"),
    ("temperature", "-1e400", "must be a finite number >= 0, got -1e400"),
    ("temperature", "9" * 5000, f"must be a finite number >= 0, got {'9' * 60}…"),
    ("top_p", "1E400", "must be 0 < p <= 1, got 1E400"),
    ("max_tokens", "1e400", "must be an integer >= 1, got 1e400"),
    ("max_tokens", BIG, None),
    ("top_k", "1" + "0" * 400, None),
    ("top_k", "-" + BIG, f"must be an integer >= 0, or -1, got -{'9' * 59}…"),
    ("seed", BIG, None),
    ("seed", BIG + "0", "must be an integer of at most 4300 digits, got one of 4301"),
    ("seed", "-" + BIG + "0", "must be an integer of at most 4300 digits, got one of 4301"),
    ("unnamed", '[1e400, {"deep": -1e400}]', None),
    ("unnamed", "9" * 5000, None),
]


@trio_test
async def test_numbers_of_any_size() -> None:
    async with serving(says("ok")) as server:
        for field, spelling, refusal in NUMBERS:
            path, body = text(temperature=1)
            body.pop(field, None)
            content = f'{json.dumps(body)[:-1]}, "{field}": {spelling}}}'
            headers = {"content-type": "application/json"}
            response = await server.client.post(path, content=content, headers=headers)
            if refusal is None:
                assert response.status_code == 200, (field, spelling, response.text)
            else:
                assert response.status_code == 400, (field, spelling)
                assert error(response) == told(refusal, field)


@trio_test
async def test_the_documents_own_refusal_to_the_byte() -> None:
    async with serving(says("ok")) as server:
        path, body = chat(top_p=2)
        response = await server.client.post(path, json=body)
        assert response.content == (
            b'{"error":{"code":null,"message":"must be 0 < p <= 1, got 2","param":"top_p",'
            b'"type":"invalid_request_error"}}'
        )
        raw = json.dumps(body).replace('"top_p": 2', '"top_p": 2.50e0')
        response = await server.client.post(
            path, content=raw, headers={"content-type": "application/json"}
        )
        assert error(response)["message"] == "must be 0 < p <= 1, got 2.50e0"


@trio_test
async def test_a_prompt_too_long_names_both_sizes() -> None:
    async with serving(never_ends(), context=30) as server:
        path, body = text(prompt=[1] * 30)
        response = await server.client.post(path, json=body)
        assert response.status_code == 400
        assert error(response) == told(
            "the prompt is 30 tokens, and the context of 30 tokens takes prompts of at most 29",
            "prompt",
        )
        path, body = chat(messages=[{"role": "user", "content": "a" * 40}])
        assert error(await server.client.post(path, json=body))["param"] == "messages"
        # One token less leaves room for one more, and the limit it meets is called length.
        path, body = text(prompt=[1] * 29)
        choice = (await server.client.post(path, json=body)).json()["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("a", "length")


@trio_test
async def test_what_a_chat_template_says_and_a_model_without_one() -> None:
    refusing = "{{ raise_exception('roles must alternate') }}"
    path, body = chat()
    async with serving(says("ok"), template=refusing) as server:
        response = await server.client.post(path, json=body)
        assert response.status_code == 400
        assert error(response) == told("roles must alternate", "messages")
    async with serving(says("ok"), template="") as server:
        response = await server.client.post(path, json=body)
        assert error(response) == told("the messages are an empty prompt", "messages")
    async with serving(says("ok"), template=None) as server:
        response = await server.client.post(path, json=body)
        assert response.status_code == 400
        assert error(response) == told(
            "the model has no chat template; send a prompt to /v1/completions", "messages"
        )


JSON = "application/json"

BODIES: list[tuple[str | None, bytes, str, str | None]] = [
    (None, b"{}", "the request has no Content-Type; send application/json", None),
    ("text/plain", b"{}", "Content-Type must be application/json, got text/plain", None),
    (JSON, b"", "the request body is empty; send a JSON object", None),
    (JSON, b"[]", "the request body must be a JSON object", None),
    (JSON, b'{"a": "\xff"}', "the request body is not UTF-8: byte 7", None),
    (
        JSON,
        b'{"a": }',
        "the request body is not JSON: a value is missing at line 1, column 7",
        None,
    ),
    (JSON, b"[" * 100_000, "the request body is nested more than 64 levels deep", None),
    (JSON, b'{"a": NaN}', "NaN is not a number in JSON", "a"),
    (JSON, b'{"a": {"b": 1, "b": 2}}', 'the key "b" comes twice', "a.b"),
    (
        JSON,
        b'{"%s": 1}' % (b"x" * 99 + b'": 0, "' + b"x" * 99),
        f'the key "{"x" * 60}…" comes twice',
        "x" * 60 + "…",
    ),
]


@pytest.mark.parametrize(("content_type", "body", "expected", "param"), BODIES)
@trio_test
async def test_a_body_that_is_not_the_json_it_should_be(
    content_type: str | None, body: bytes, expected: str, param: str | None
) -> None:
    async with serving(says("ok")) as server:
        headers = {} if content_type is None else {"content-type": content_type}
        response = await server.client.post(CHAT, content=body, headers=headers)
        assert response.status_code == 400
        assert error(response) == told(expected, param)
        assert (await server.client.get("/healthz")).text == "ok"


@trio_test
async def test_paths_and_methods() -> None:
    async with serving(says("ok")) as server:
        client = server.client
        for path in ("/", "/v1/chat/completions/", "/v1/models/x", "/V1/models"):
            response = await client.get(path)
            assert response.status_code == 404, path
            assert error(response) == told(f"there is nothing at {path}", None)
        response = await client.get(CHAT)
        assert response.status_code == 405
        assert response.headers["allow"] == "OPTIONS, POST"
        assert error(response) == told(f"{CHAT} does not take GET; it takes OPTIONS, POST", None)
        response = await client.request("BREW", "/v1/models")
        assert response.status_code == 405
        assert response.headers["allow"] == "GET, HEAD, OPTIONS"
        response = await client.options(CHAT)
        assert (response.status_code, response.content) == (200, b"")
        assert response.headers["allow"] == "OPTIONS, POST"
        response = await client.head("/v1/models")
        assert (response.status_code, response.content) == (200, b"")
