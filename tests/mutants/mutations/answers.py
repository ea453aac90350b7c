"""Whole answers that say something wrong, or say it in another form."""

from __future__ import annotations

import json
from typing import Any

from tests.mutants.exchange import Reply, Request, mutation, to_json
from tests.mutants.rewriting import (
    CHAT,
    COMPLETIONS,
    MODEL,
    OK,
    Json,
    all_of,
    body,
    both,
    chat,
    choice,
    chunk_choice,
    chunk_text,
    completions,
    fields,
    generating,
    given,
    objects,
    says,
    text,
    to,
    usage,
    value,
    where,
    whole,
    with_chunk_text,
)

MEMBERS = tuple(
    f"{endpoint}.response.{member}"
    for endpoint in ("chat", "completions")
    for member in ("object", "choice", "id", "created", "model")
)
EXACT = ("chat.response.exact", "completions.response.exact")
COUNTS = ("chat.usage.total", "chat.usage.completion", "chat.usage.prompt", "completions.usage")
CAPTURED = (
    *("chat.response.text", "chat.content.captured", "chat.stop.captured"),
    *("completions.response.text", "completions.stop.captured", "completions.prompt.captured"),
    *("completions.ignore-eos.captured", "completions.streaming.captured"),
    "streaming.text.captured",
)
IDS = ("fields.token-ids.whole", "fields.token-ids.streamed", "completions.prompt.ids*")


def reversed_keys(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: reversed_keys(answer[key]) for key in sorted(answer, reverse=True)}
    return [reversed_keys(item) for item in answer] if isinstance(answer, list) else answer


def echoed_model(reply: Reply, request: Request) -> Reply:
    return objects(lambda answer: answer | {"model": request.fields["model"]})(reply, request)


def is_captured(asked: Json) -> bool:
    """Whether it may be the request of a golden: none of a model's fingerprint is so long."""
    return int(asked.get("max_tokens") or 0) >= 10


def another_models_words(reply: Reply, request: Request) -> Reply:
    """Other texts, whole or streamed."""

    def other(choice: Json) -> Json:
        text = chunk_text(choice)
        return with_chunk_text(choice, f"{text}~") if text else choice

    tell = says(lambda text: f"{text}~") if reply.whole else chunk_choice(other)
    return tell(reply, request)


def after_the_prompt(reply: Reply, request: Request) -> Reply:
    return says(lambda text: str(request.fields["prompt"]) + text)(reply, request)


answered: Json = {"picks": whole, "status": OK}
on_chat: Json = {"picks": all_of(whole, chat), "status": OK}
on_completions: Json = {"picks": all_of(whole, completions), "status": OK}

MUTATIONS = [
    mutation(
        "keys in another order",
        "wire.keys.sorted",
        tell=text(
            lambda body: (
                json.dumps(reversed_keys(json.loads(body)))
                .replace(", ", ",")
                .replace(": ", ":")
                .encode()
            )
        ),
        picks=to(CHAT, COMPLETIONS, "/v1/models"),
    ),
    mutation(
        "spaced JSON",
        "wire.compact",
        tell=text(lambda body: json.dumps(json.loads(body), sort_keys=True).encode()),
        picks=generating,
    ),
    mutation(
        "a line feed after each answer",
        "wire.compact",
        tell=text(lambda body: body + b"\n"),
        picks=generating,
    ),
    mutation(
        "answers as text/plain",
        "wire.media-type",
        tell=lambda reply, _: reply.with_header("content-type", "text/plain"),
        **answered,
    ),
    mutation(
        "the model's name as it was asked for",
        "chat.model.exact",
        "chat.model.unknown",
        "chat.model.unknown-names",
        areas=("chat.model.*",),
        picks=chat,
        ask=fields(
            lambda asked: asked | {"model": MODEL if isinstance(asked.get("model"), str) else None}
        ),
        tell=lambda reply, request: echoed_model(reply, request) if reply.status == 200 else reply,
    ),
    mutation(
        "the model by its file's name",
        "chat.response.model",
        areas=("chat.response.*",),
        tell=value(lambda answer: answer | {"model": "smollm2.gguf"}),
        **answered,
    ),
    mutation(
        "created in milliseconds",
        "chat.response.created",
        "completions.response.created",
        areas=MEMBERS,
        tell=value(lambda answer: answer | {"created": answer["created"] * 1000}),
        **answered,
    ),
    mutation(
        "one id for all",
        "chat.response.id",
        "completions.response.id",
        areas=MEMBERS,
        tell=value(lambda answer: answer | {"id": answer["id"].partition("-")[0] + "-1"}),
        **answered,
    ),
    mutation(
        "ids of another kind",
        "chat.response.id",
        "completions.response.id",
        areas=MEMBERS,
        tell=value(lambda answer: answer | {"id": answer["id"].replace("cmpl-", "x-")}),
        **answered,
    ),
    mutation(
        "the other endpoint's object",
        "chat.response.object",
        "completions.response.object",
        areas=MEMBERS,
        tell=value(
            lambda answer: (
                answer
                | {"object": "text_completion" if "chat" in answer["object"] else "chat.completion"}
            )
        ),
        **answered,
    ),
    mutation(
        "no choice",
        "chat.response.*",
        "completions.response.*",
        areas=MEMBERS,
        tell=value(lambda answer: answer | {"choices": []}),
        **answered,
    ),
    mutation(
        "two choices",
        "chat.response.*",
        "completions.response.*",
        areas=MEMBERS,
        tell=value(lambda answer: answer | {"choices": answer["choices"] * 2}),
        **answered,
    ),
    mutation(
        "indices from one",
        "chat.response.choice",
        "completions.response.choice",
        areas=MEMBERS,
        tell=choice(lambda choice: choice | {"index": 1}),
        **answered,
    ),
    mutation(
        "messages from the user",
        "chat.response.choice",
        areas=MEMBERS,
        tell=choice(lambda choice: choice | {"message": choice["message"] | {"role": "user"}}),
        **on_chat,
    ),
    mutation(
        "no finish_reason",
        "chat.response.*",
        "completions.response.*",
        areas=MEMBERS,
        tell=choice(lambda choice: {key: choice[key] for key in choice if key != "finish_reason"}),
        **answered,
    ),
    mutation(
        "content null",
        "chat.response.*",
        areas=MEMBERS,
        tell=choice(lambda choice: choice | {"message": choice["message"] | {"content": None}}),
        **on_chat,
    ),
    mutation(
        "more members",
        "chat.response.exact",
        "completions.response.exact",
        areas=EXACT,
        tell=value(lambda answer: answer | {"system_fingerprint": "fp"}),
        **answered,
    ),
    mutation(
        "no usage",
        "chat.response.*",
        "completions.response.*",
        areas=MEMBERS,
        tell=value(lambda answer: {key: answer[key] for key in answer if key != "usage"}),
        **answered,
    ),
    mutation(
        "a wrong total",
        "chat.usage.total",
        "completions.usage",
        areas=COUNTS,
        tell=usage(lambda usage: usage | {"total_tokens": usage["completion_tokens"]}),
        **answered,
    ),
    mutation(
        "one token too many counted",
        "chat.usage.completion",
        "completions.usage",
        areas=COUNTS,
        tell=usage(
            lambda usage: (
                usage
                | {
                    "completion_tokens": usage["completion_tokens"] + 1,
                    "total_tokens": usage["total_tokens"] + 1,
                }
            )
        ),
        **answered,
    ),
    mutation(
        "prompts not counted",
        "chat.usage.prompt",
        "completions.usage",
        areas=COUNTS,
        tell=usage(
            lambda usage: usage | {"prompt_tokens": 0, "total_tokens": usage["completion_tokens"]}
        ),
        **answered,
    ),
    mutation(
        "counts as texts",
        "chat.response.*",
        "completions.response.*",
        areas=MEMBERS,
        tell=usage(lambda usage: {key: str(count) for key, count in usage.items()}),
        **answered,
    ),
    mutation(
        "texts doubled",
        *both("text.same"),
        areas=both("text.same"),
        tell=says(lambda text: text * 2),
        **answered,
    ),
    mutation(
        "texts trimmed",
        "completions.streaming.text.same",
        areas=both("text.same"),
        tell=says(str.strip),
        **answered,
    ),
    mutation(
        "another model's words",
        *CAPTURED,
        picks=where(is_captured),
        status=OK,
        tell=another_models_words,
        areas=CAPTURED,
    ),
    mutation(
        "the prompt before its continuation",
        "completions.response.continues",
        areas=("completions.response.continues",),
        tell=after_the_prompt,
        **on_completions,
    ),
    mutation(
        "a 200 with an error inside",
        "chat.response.*",
        "completions.response.*",
        areas=MEMBERS,
        tell=body(
            to_json(
                {"error": {"code": None, "message": "no", "param": None, "type": "server_error"}}
            ),
            "application/json",
        ),
        **answered,
    ),
    mutation(
        "token ids unasked",
        "fields.token-ids.default",
        picks=whole,
        ask=fields(
            lambda asked: (
                asked
                if "return_token_ids" in asked and asked["return_token_ids"] is not False
                else asked | {"return_token_ids": True}
            )
        ),
    ),
    mutation(
        "token ids dropped",
        "completions.prompt.ids",
        "completions.prompt.ids-continue",
        "fields.token-ids.streamed",
        "fields.token-ids.whole",
        picks=all_of(whole, given("return_token_ids")),
        status=OK,
        areas=IDS,
        tell=choice(lambda choice: {key: choice[key] for key in choice if key != "token_ids"}),
    ),
    mutation(
        "the last token id dropped",
        "fields.token-ids.streamed",
        "fields.token-ids.whole",
        picks=all_of(whole, where(lambda asked: asked.get("return_token_ids") is True)),
        status=OK,
        areas=IDS,
        tell=choice(lambda choice: choice | {"token_ids": choice["token_ids"][:-1]}),
    ),
    mutation(
        "a list of two models",
        "models.one",
        "models.exact",
        "models.printed",
        "models.shape",
        picks=to("/v1/models"),
        tell=value(
            lambda listed: (
                listed | {"data": [*listed["data"], {"id": "another", "object": "model"}]}
            )
        ),
    ),
    mutation(
        "a model listed twice",
        "models.one",
        "models.printed",
        picks=to("/v1/models"),
        tell=value(lambda listed: listed | {"data": listed["data"] * 2}),
    ),
    mutation(
        "models that are not called so",
        "models.shape",
        "models.printed",
        picks=to("/v1/models"),
        tell=value(
            lambda listed: (
                listed | {"data": [model | {"object": "llm"} for model in listed["data"]]}
            )
        ),
    ),
    mutation(
        "the listed name is not taken",
        "models.one",
        picks=to("/v1/models"),
        tell=value(
            lambda listed: (
                listed
                | {"data": [model | {"id": "models/" + model["id"]} for model in listed["data"]]}
            )
        ),
    ),
    mutation(
        "health as JSON",
        "health.healthz",
        "health.health",
        picks=to("/health", "/healthz"),
        tell=body(b'{"status":"ok"}', "application/json"),
    ),
    mutation(
        "no /health", "health.health", picks=to("/health"), tell=body(b"ok", "text/plain", 404)
    ),
]
