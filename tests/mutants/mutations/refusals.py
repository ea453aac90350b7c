"""Requests that are answered or refused where they must not be, or refused in another way."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

from attrs import evolve

from tests.mutants.exchange import Mutation, Reply, Request, mutation, to_json
from tests.mutants.rewriting import (
    CHAT,
    COMPLETIONS,
    MODEL,
    OK,
    REFUSED,
    Json,
    body,
    chat,
    error,
    fields,
    generating,
    given,
    header,
    refusal,
    status,
    value,
    where,
    with_header,
)
from tests.mutants.toy.rules import FIELDS

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
UNIMPLEMENTED = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "top_logprobs",
    "best_of",
    "logprobs",
    "logit_bias",
    "tools",
    "tool_choice",
    "response_format",
)
CAPS = ("max_tokens", "max_completion_tokens")

# Fields whose wrong values a server may pass over, and the clauses that say it must not.
TAKEN_ANYHOW: list[tuple[Sequence[str], Sequence[str]]] = [
    (SAMPLING, ["sampling.*.refuses"]),
    (UNIMPLEMENTED, ["unimplemented.*.refused"]),
    (CAPS, ["chat.max-tokens.least", "chat.max-tokens.type"]),
    (["stop"], ["chat.stop.five", "chat.stop.too-long", "chat.stop.empty", "chat.stop.type"]),
    (["stream"], ["streaming.field.type"]),
    (["stream_options"], ["streaming.options.type"]),
    (["ignore_eos"], ["completions.ignore-eos.type"]),
    (["return_token_ids"], ["fields.token-ids.type"]),
]
# Fields whose right values a server may refuse.
REFUSED_ANYHOW: list[tuple[Sequence[str], Sequence[str]]] = [
    (SAMPLING, ["sampling.*.takes"]),
    (UNIMPLEMENTED, ["unimplemented.*.neutral"]),
    (["stop"], ["chat.stop.longest", "chat.stop.none"]),
]


def wrong(asked: Json, names: Sequence[str]) -> list[str]:
    """Which of these fields have a value that is refused."""
    return [name for name in names if name in asked and not FIELDS[name](asked[name])]


def taken_anyhow(names: Sequence[str], clauses: Sequence[str]) -> Mutation:
    """Whatever is wrong in a field is passed over."""

    def pass_over(asked: Json) -> Json:
        left_out = wrong(asked, names)
        return {name: asked[name] for name in asked if name not in left_out} | {"max_tokens": 1}

    return mutation(
        f"taken anyhow: {', '.join(names)}",
        *clauses,
        picks=where(lambda asked: wrong(asked, names)),
        ask=fields(pass_over),
        areas=clauses,
    )


def refused_anyhow(names: Sequence[str], clauses: Sequence[str]) -> Mutation:
    """A field is refused whatever it says."""

    def given_rightly(asked: Json) -> bool:
        # The suite sends a temperature with nearly every request.
        return any(
            name in asked and FIELDS[name](asked[name]) and (name, asked[name]) != _USUAL
            for name in names
        )

    return mutation(
        f"refused anyhow: {', '.join(names)}",
        *clauses,
        picks=where(given_rightly),
        tell=refusal("not here", names[0]),
        areas=clauses,
    )


_USUAL = ("temperature", 0)


GOOD: dict[str, Json] = {
    CHAT: {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1},
    COMPLETIONS: {"model": MODEL, "prompt": "Hi", "max_tokens": 1},
}


def good(request: Request) -> Request:
    """A request that is answered, in place of whatever was asked."""
    return evolve(request, body=to_json(GOOD[request.path])) if request.path in GOOD else request


def trouble(content: bytes) -> str:
    """What is wrong with a body, by the last part of the clause's id."""
    if not content:
        return "empty"
    if b"[[[[" in content:
        return "nested"
    twins = False

    def pairs(members: list[tuple[str, Any]]) -> Json:
        nonlocal twins
        twins |= len(dict(members)) < len(members)
        return dict(members)

    def constant(name: str) -> None:
        raise KeyError(name)

    try:
        value = json.loads(content.decode(), object_pairs_hook=pairs, parse_constant=constant)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        return "utf8"
    except UnicodeEncodeError:
        return "surrogate"
    except KeyError:
        return "constants"
    except ValueError:
        return "json"
    if not isinstance(value, dict):
        return "object"
    return "duplicate" if twins else ""


def has_trouble(request: Request) -> bool:
    return request.method == "POST" and len(request.body) < 2**21 and bool(trouble(request.body))


TROUBLES = ("json", "empty", "object", "utf8", "surrogate", "constants", "duplicate", "nested")


def no_place(reply: Reply, request: Request) -> Reply:
    param = str(reply.value["error"]["param"] or "")
    return error(param=param.partition("[")[0] or None)(reply, request)


posts: Json = {"picks": lambda request: request.method == "POST", "status": REFUSED}


def oversize(request: Request) -> bool:
    return len(request.body) > 4 * 1024 * 1024


def in_chunks(request: Request) -> bool:
    return bool(request.header("transfer-encoding"))


FRAME = ("errors.object", "errors.object.exact", "errors.type", "errors.code.null")
BODIES = tuple(f"errors.body.{kind}" for kind in (*TROUBLES, "media-type"))
ROUTES = ("errors.route.unknown", "errors.route.method")
ERRORS = (*FRAME, "errors.media-type", *BODIES, *ROUTES)
BY_FIELD = (
    "sampling.top-p.refuses",
    "unimplemented.n.refused",
    *(f"chat.model.{what}" for what in ("required", "type", "unknown")),
    *(f"chat.messages.{what}" for what in ("required", "type", "none", "too-many")),
    *(f"chat.stop.{what}" for what in ("five", "too-long", "empty", "type")),
    *(f"completions.prompt.{what}" for what in ("required", "type", "empty", "batch", "id-type")),
    "streaming.field.type",
    "fields.token-ids.type",
)
BY_PLACE = (
    "chat.messages.item",
    "chat.messages.role",
    *(f"chat.content.{what}" for what in ("type", "required", "part-type", "part-malformed")),
    "chat.content.image-refused",
    "completions.prompt.id-range",
)

MUTATIONS = [
    *itertools.starmap(taken_anyhow, TAKEN_ANYHOW),
    *itertools.starmap(refused_anyhow, REFUSED_ANYHOW),
    mutation(
        "whatever is wrong with a body",
        *(f"errors.body.{kind}" for kind in TROUBLES),
        picks=has_trouble,
        ask=good,
        areas=("errors.body.*",),
    ),
    mutation(
        "any media type is JSON",
        "errors.body.media-type",
        picks=lambda request: request.method == "POST",
        ask=with_header("content-type", "application/json"),
        areas=("errors.body.*",),
    ),
    mutation(
        "refused with a 422",
        *BY_FIELD,
        *BY_PLACE,
        tell=status(422),
        areas=(*BY_FIELD, *BY_PLACE),
        **posts,
    ),
    mutation(
        "refused with a 500",
        *BY_FIELD,
        *BY_PLACE,
        tell=status(500),
        areas=(*BY_FIELD, *BY_PLACE),
        picks=lambda request: request.method == "POST",
        status=range(400, 401),
    ),
    mutation(
        "refused without a param",
        *BY_FIELD,
        *BY_PLACE,
        tell=error(param=None),
        areas=(*BY_FIELD, *BY_PLACE),
        **posts,
    ),
    mutation(
        "refused without a place", *BY_PLACE, tell=no_place, areas=(*BY_FIELD, *BY_PLACE), **posts
    ),
    mutation(
        "error is a string",
        *FRAME,
        *BODIES,
        *ROUTES,
        "sampling.top-p.printed",
        "server.host.foreign",
        tell=value(lambda answer: {"error": answer["error"]["message"]}),
        status=REFUSED,
        areas=(*ERRORS, "sampling.top-p.printed", "server.host.*"),
    ),
    mutation(
        "errors in HTML",
        *ERRORS,
        "server.host.foreign",
        tell=body(b"<html>no</html>", "text/html"),
        status=REFUSED,
        areas=(*ERRORS, "server.host.*"),
    ),
    mutation(
        "errors as text/plain",
        "errors.media-type",
        "streaming.refusal",
        tell=header("content-type", "text/plain"),
        status=REFUSED,
        areas=(*ERRORS, "streaming.refusal"),
    ),
    mutation(
        "an error without a message",
        "chat.content.image-words",
        "chat.model.unknown-names",
        "errors.object",
        tell=error(message=""),
        status=REFUSED,
        areas=(*ERRORS, "chat.model.unknown-names", "chat.content.image-words"),
    ),
    mutation(
        "an error without a code",
        "errors.object",
        tell=error(code=...),
        status=REFUSED,
        areas=ERRORS,
    ),
    mutation(
        "an error with its status as its code",
        "errors.code.null",
        tell=error(code=400),
        status=REFUSED,
        areas=ERRORS,
    ),
    mutation(
        "an error of another type",
        "errors.type",
        tell=error(type="BadRequestError"),
        status=REFUSED,
        areas=ERRORS,
    ),
    mutation(
        "an error with more beside it",
        "errors.object.exact",
        tell=value(lambda answer: answer | {"object": "error"}),
        status=REFUSED,
        areas=ERRORS,
    ),
    mutation(
        "an error without its frame",
        *FRAME,
        *BODIES,
        *ROUTES,
        tell=value(lambda answer: answer["error"]),
        status=REFUSED,
        areas=ERRORS,
    ),
    mutation(
        "a 413 that is a 400",
        "errors.size.chunked",
        "errors.size.over",
        tell=status(400),
        status=range(413, 414),
        areas=("errors.size.*",),
    ),
    mutation(
        "a large body is answered",
        "errors.size.over",
        picks=lambda request: oversize(request) and not in_chunks(request),
        ask=good,
        areas=("errors.size.*",),
    ),
    mutation(
        "a large body in chunks is answered",
        "errors.size.chunked",
        picks=lambda request: oversize(request) and in_chunks(request),
        ask=good,
        areas=("errors.size.*",),
    ),
    mutation(
        "bodies end at 4 MB",
        "errors.size.most",
        picks=lambda request: len(request.body) > 4_000_000,
        tell=refusal("too large", None, 413),
        areas=("errors.size.*",),
    ),
    mutation(
        "bodies in chunks are refused",
        "wire.request.chunked",
        picks=in_chunks,
        tell=refusal("send a length", None, 411),
        areas=("wire.request.chunked", "wire.request.pieces"),
    ),
    mutation(
        "compressed bodies are refused",
        "wire.request.gzip",
        "wire.request.zstd",
        picks=lambda request: bool(request.header("content-encoding")),
        tell=refusal("send it plain", None, 415),
        areas=("wire.request.*",),
    ),
    mutation(
        "too long without its sizes",
        "errors.prompt.sizes",
        tell=error(message="the prompt is too long"),
        picks=generating,
        status=REFUSED,
        areas=("errors.prompt.*",),
    ),
    mutation(
        "a 404 in HTML",
        "errors.route.unknown",
        tell=body(b"<html>no</html>", "text/html"),
        status=range(404, 405),
        areas=ERRORS,
    ),
    mutation(
        "a 405 that is a 404",
        "errors.route.method",
        tell=status(404),
        status=range(405, 406),
        areas=ERRORS,
    ),
    mutation(
        "a 405 that allows nothing",
        "errors.route.method",
        tell=header("allow", ""),
        status=range(405, 406),
        areas=ERRORS,
    ),
    mutation(
        "a key is needed",
        "server.key.*",
        picks=lambda request: not request.header("authorization") and generating(request),
        tell=refusal("no key", None, 401),
        areas=("server.key.*",),
    ),
    mutation(
        "a key is refused",
        "server.key.any",
        picks=lambda request: bool(request.header("authorization")),
        tell=refusal("no such key", None, 401),
        areas=("server.key.*",),
    ),
    mutation(
        "any host is taken",
        "server.host.foreign",
        picks=lambda request: True,
        ask=with_header("host", "localhost"),
        areas=("server.host.*",),
    ),
    mutation(
        "another host is a 404",
        "server.host.foreign",
        status=range(403, 404),
        tell=status(404),
        areas=("server.host.*",),
    ),
    mutation(
        "user is refused",
        "fields.user",
        picks=given("user"),
        tell=refusal("unknown field", "user"),
        areas=("fields.*",),
    ),
    mutation(
        "unknown fields are refused",
        "fields.unnamed",
        picks=given("x_no_such_field"),
        tell=refusal("unknown field", "x_no_such_field"),
        areas=("fields.*",),
    ),
    mutation(
        "fields of other APIs are refused",
        "fields.other-apis",
        picks=given("echo", "suffix", "functions"),
        tell=refusal("unknown field", "echo"),
        areas=("fields.*",),
    ),
    mutation(
        "no image is spoken of",
        "chat.content.image-words",
        picks=chat,
        status=REFUSED,
        tell=error(message="no"),
        areas=("chat.content.image-words", "chat.content.image-refused"),
    ),
    mutation(
        "any model's name is taken",
        "chat.model.required",
        "chat.model.type",
        "chat.model.unknown",
        "chat.model.unknown-names",
        "chat.model.exact",
        picks=generating,
        ask=fields(lambda asked: asked | {"model": MODEL}),
        areas=("chat.model.*",),
    ),
    mutation(
        "the served name is not told",
        "chat.model.unknown-names",
        "completions.model.unknown-names",
        picks=generating,
        status=REFUSED,
        tell=error(message="unknown model"),
        areas=("chat.model.*", "completions.model.*"),
    ),
    mutation(
        "256 messages are too many",
        "chat.messages.most",
        picks=where(lambda asked: len(str(asked.get("messages")).split("role")) == 257),
        tell=refusal("too many", "messages"),
        areas=("chat.messages.*",),
    ),
    mutation(
        "top_p refused in other words",
        "sampling.top-p.printed",
        tell=error(message="out of range"),
        status=REFUSED,
        areas=("sampling.top-p.*",),
    ),
    mutation(
        "an answer is refused",
        "chat.response.*",
        picks=chat,
        status=OK,
        tell=refusal("not today", None, 503),
        areas=("chat.response.object", "chat.response.choice", "chat.response.id"),
    ),
]
