"""Requests that are not taken as they are meant: fields without effect, or with another."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

from tests.mutants.exchange import Reply, Request, mutation
from tests.mutants.rewriting import (
    OK,
    Ask,
    Json,
    all_of,
    both,
    chat,
    choice,
    completions,
    fields,
    generating,
    lacking,
    says,
    streamed,
    where,
    whole,
    without,
)
from tests.mutants.toy.rules import is_stop

Change = Callable[[Any], Any]


def set_to(**values: Any) -> Ask:
    """Other values of fields."""
    return fields(lambda asked: asked | values)


def by_default(**values: Any) -> Ask:
    """Defaults for fields that are absent or null."""

    def change(asked: Json) -> Json:
        absent = {name: value for name, value in values.items() if asked.get(name) is None}
        return asked | absent

    return fields(change)


def messages(change: Change) -> Ask:
    """Another list of messages."""
    return fields(
        lambda asked: (
            asked | {"messages": change(asked["messages"])}
            if isinstance(asked.get("messages"), list)
            else asked
        )
    )


def without_system(listed: list[Any]) -> list[Any]:
    return [
        message
        for message in listed
        if not isinstance(message, dict) or message.get("role") != "system"
    ] or listed


def contents(change: Change) -> Ask:
    """Another content in each message."""
    return messages(
        lambda listed: [
            message | {"content": change(message["content"])}
            if isinstance(message, dict) and "content" in message
            else message
            for message in listed
        ]
    )


def texts(change: Callable[[list[Json]], Any]) -> Ask:
    """Another content in each message whose parts are all texts."""

    def changed(content: Any) -> Any:
        are_texts = isinstance(content, list) and all(
            isinstance(part, dict)
            and part.get("type") == "text"
            and isinstance(part.get("text"), str)
            for part in content
        )
        return change(content) if are_texts else content

    return contents(changed)


def in_texts(old: str, new: str) -> Ask:
    """Another spelling of what messages hold."""

    def respelt(content: Any) -> Any:
        if isinstance(content, str):
            return content.replace(old, new)
        if isinstance(content, list):
            return [
                part | {"text": part["text"].replace(old, new)}
                if isinstance(part, dict) and isinstance(part.get("text"), str)
                else part
                for part in content
            ]
        return content

    return contents(respelt)


def ids(change: Change) -> Ask:
    """Other token ids in a prompt of them."""
    return fields(
        lambda asked: (
            asked | {"prompt": change(asked["prompt"])}
            if isinstance(asked.get("prompt"), list)
            and all(type(i) is int for i in asked["prompt"])
            and asked["prompt"]
            else asked
        )
    )


def stops(change: Change) -> Ask:
    """Another stop."""
    return fields(
        lambda asked: asked | {"stop": change(asked["stop"])} if asked.get("stop") else asked
    )


def first_stop(stop: Any) -> Any:
    return (
        stop[:1]
        if isinstance(stop, list) and len(stop) < 5 and all(isinstance(s, str) and s for s in stop)
        else stop
    )


stopped = where(lambda asked: bool(asked.get("stop")) and is_stop(asked["stop"]))
STOPS = (
    *(
        f"{endpoint}.stop.{what}"
        for endpoint in ("chat", "completions")
        for what in ("string", "reason", "several", "split-over-tokens", "shortest", "at-once")
    ),
    *both("stop.hidden"),
    "completions.ignore-eos.stop",
)
MESSAGES = (
    "chat.messages.conversation",
    "chat.messages.template",
    "chat.system.taken",
    "chat.content.joined",
    "chat.content.parts",
    "chat.content.image-marker",
    "chat.content.special",
    "chat.usage.prompt",
)
CAPS = tuple(
    f"{endpoint}.max-tokens.{what}"
    for endpoint in ("chat", "completions")
    for what in ("caps", "other-name", "absent", "null", "one")
)
ENDS = (*CAPS, "chat.end.stop", "completions.ignore-eos.runs-on", *STOPS)


def composed(asked: Json) -> Json:
    """Texts in Unicode's composed form, as a tokenizer of another family reads them."""
    normal: Json = json.loads(unicodedata.normalize("NFC", json.dumps(asked, ensure_ascii=False)))
    return normal


def with_stop(reply: Reply, request: Request) -> Reply:
    """The stop behind the text."""
    stop = request.fields["stop"]
    return says(lambda text: text + (stop if isinstance(stop, str) else stop[-1]))(reply, request)


EFFECTS = tuple(
    f"sampling.{name}"
    for name in (
        "default.*",
        "temperature.zero",
        "temperature.spreads",
        "top-k.one",
        "top-k.all",
        "top-p.least",
        "min-p.one",
        "repetition-penalty.one",
        "repetition-penalty.acts",
        "seed.same",
        "seed.streamed",
        "seed.fresh",
        "endpoints",
    )
)

MUTATIONS = [
    mutation(
        "sampled by default on one endpoint",
        "sampling.default.greedy",
        picks=completions,
        ask=by_default(temperature=1.5),
        areas=("sampling.default.*",),
    ),
    mutation(
        "null is 1",
        "sampling.default.null",
        picks=generating,
        ask=fields(
            lambda asked: (
                asked | {"temperature": 1} if asked.get("temperature", 0) is None else asked
            )
        ),
        areas=EFFECTS,
    ),
    mutation(
        "temperature 0 is no temperature",
        "sampling.min-p.one",
        "sampling.repetition-penalty.one",
        "sampling.temperature.zero",
        "sampling.top-k.one",
        "sampling.top-p.least",
        picks=where(
            lambda asked: (
                asked.get("temperature") == 0 and not isinstance(asked["temperature"], bool)
            )
        ),
        ask=set_to(temperature=1.0),
        areas=EFFECTS,
    ),
    mutation(
        "always greedy",
        "sampling.endpoints",
        "sampling.seed.fresh",
        "sampling.temperature.spreads",
        picks=where(
            lambda asked: (
                type(asked.get("temperature")) in (int, float) and asked["temperature"] >= 0
            )
        ),
        ask=set_to(temperature=0),
        areas=EFFECTS,
    ),
    mutation(
        "the seed is not used",
        "sampling.default.values",
        "sampling.endpoints",
        "sampling.seed.same",
        "sampling.seed.streamed",
        "sampling.top-k.all",
        picks=where(lambda asked: type(asked.get("seed")) is int and asked["seed"] >= 0),
        ask=without("seed"),
        areas=EFFECTS,
    ),
    mutation(
        "the seed is always 1",
        "sampling.seed.fresh",
        picks=where(lambda asked: asked.get("seed") in (None, -1)),
        ask=set_to(seed=1),
        areas=EFFECTS,
    ),
    mutation(
        "streams have a seed of their own",
        "sampling.seed.streamed",
        picks=streamed,
        ask=fields(
            lambda asked: (
                asked | {"seed": asked["seed"] + 1} if type(asked.get("seed")) is int else asked
            )
        ),
        areas=EFFECTS,
    ),
    mutation(
        "top_k is not used",
        "sampling.top-k.one",
        picks=where(lambda asked: type(asked.get("top_k")) is int and asked["top_k"] > 0),
        ask=without("top_k"),
        areas=EFFECTS,
    ),
    mutation(
        "top_k of -1 is 1",
        "sampling.top-k.all",
        picks=where(lambda asked: asked.get("top_k") == -1),
        ask=set_to(top_k=1),
        areas=EFFECTS,
    ),
    mutation(
        "top_k of 0 is 1",
        "sampling.default.values",
        "sampling.endpoints",
        "sampling.seed.fresh",
        "sampling.temperature.spreads",
        "sampling.top-k.all",
        picks=where(lambda asked: asked.get("top_k") == 0 and type(asked["top_k"]) is int),
        ask=set_to(top_k=1),
        areas=EFFECTS,
    ),
    mutation(
        "top_p is not used",
        "sampling.top-p.least",
        picks=where(
            lambda asked: type(asked.get("top_p")) in (int, float) and 0 < asked["top_p"] <= 1
        ),
        ask=without("top_p"),
        areas=EFFECTS,
    ),
    mutation(
        "min_p is not used",
        "sampling.min-p.one",
        picks=where(
            lambda asked: type(asked.get("min_p")) in (int, float) and 0 <= asked["min_p"] <= 1
        ),
        ask=without("min_p"),
        areas=EFFECTS,
    ),
    mutation(
        "repetition_penalty is not used",
        "sampling.repetition-penalty.acts",
        picks=where(
            lambda asked: (
                type(asked.get("repetition_penalty")) in (int, float)
                and asked["repetition_penalty"] > 0
            )
        ),
        ask=without("repetition_penalty"),
        areas=EFFECTS,
    ),
    mutation(
        "a penalty of 1 is one of 2",
        "sampling.default.values",
        "sampling.repetition-penalty.one",
        picks=where(
            lambda asked: (
                asked.get("repetition_penalty") == 1 and type(asked["repetition_penalty"]) is int
            )
        ),
        ask=set_to(repetition_penalty=2),
        areas=EFFECTS,
    ),
    mutation(
        "sampling on completions alone",
        "sampling.endpoints",
        "sampling.seed.fresh",
        "sampling.temperature.spreads",
        picks=all_of(
            chat,
            where(
                lambda asked: (
                    type(asked.get("temperature")) in (int, float) and asked["temperature"] > 0
                )
            ),
        ),
        ask=set_to(temperature=0),
        areas=EFFECTS,
    ),
    mutation(
        "a hidden cap",
        "chat.max-tokens.absent",
        "completions.max-tokens.absent",
        picks=lacking("max_tokens", "max_completion_tokens"),
        ask=set_to(max_tokens=16),
        areas=CAPS,
    ),
    mutation(
        "max_completion_tokens is not used",
        "chat.max-tokens.other-name",
        "completions.max-tokens.other-name",
        picks=where(
            lambda asked: (
                type(asked.get("max_completion_tokens")) is int
                and asked["max_completion_tokens"] > 0
                and "max_tokens" not in asked
            )
        ),
        ask=fields(
            lambda asked: (
                {name: asked[name] for name in asked if name != "max_completion_tokens"}
                | {"max_tokens": 5}
            )
        ),
        areas=CAPS,
    ),
    mutation(
        "max_tokens ends at 4",
        "chat.end.stop",
        "chat.ignore-eos",
        picks=where(lambda asked: type(asked.get("max_tokens")) is int and asked["max_tokens"] > 4),
        ask=set_to(max_tokens=4),
        areas=("chat.end.stop", "chat.ignore-eos", *CAPS),
    ),
    mutation(
        "one token more than the cap",
        "chat.max-tokens.caps",
        "chat.max-tokens.null",
        "chat.max-tokens.one",
        "completions.max-tokens.caps",
        "completions.max-tokens.null",
        "completions.max-tokens.one",
        "chat.usage.completion",
        "completions.usage",
        picks=where(lambda asked: type(asked.get("max_tokens")) is int and asked["max_tokens"] > 0),
        ask=fields(lambda asked: asked | {"max_tokens": asked["max_tokens"] + 1}),
        areas=(*CAPS, "chat.usage.completion", "completions.usage"),
    ),
    mutation(
        "every end is a stop",
        "chat.max-tokens.caps",
        "completions.max-tokens.caps",
        "chat.max-tokens.null",
        "completions.max-tokens.null",
        "chat.max-tokens.one",
        "completions.max-tokens.one",
        "chat.max-tokens.other-name",
        "completions.max-tokens.other-name",
        "completions.ignore-eos.runs-on",
        picks=whole,
        status=OK,
        tell=choice(lambda choice: choice | {"finish_reason": "stop"}),
        areas=ENDS,
    ),
    mutation(
        "every end is a length",
        "chat.end.stop",
        "chat.stop.reason",
        "completions.stop.reason",
        "completions.ignore-eos.stop",
        picks=whole,
        status=OK,
        tell=choice(lambda choice: choice | {"finish_reason": "length"}),
        areas=ENDS,
    ),
    mutation(
        "ignore_eos is not used",
        "completions.ignore-eos.runs-on",
        picks=where(lambda asked: asked.get("ignore_eos") is True),
        ask=without("ignore_eos"),
        areas=("completions.ignore-eos.runs-on", "completions.ignore-eos.off"),
    ),
    mutation(
        "stop is not used",
        "chat.stop.string",
        "completions.stop.string",
        "chat.stop.reason",
        "completions.stop.reason",
        "chat.stop.several",
        "completions.stop.several",
        "chat.stop.split-over-tokens",
        "completions.stop.split-over-tokens",
        "chat.stop.shortest",
        "completions.stop.shortest",
        "chat.stop.at-once",
        "completions.stop.at-once",
        "completions.ignore-eos.stop",
        *both("stop.hidden"),
        picks=stopped,
        ask=without("stop"),
        areas=STOPS,
    ),
    mutation(
        "stop is not used in streams",
        *both("stop.hidden"),
        picks=all_of(stopped, streamed),
        ask=without("stop"),
        areas=STOPS,
    ),
    mutation(
        "only the first stop is used",
        "chat.stop.several",
        "completions.stop.several",
        picks=stopped,
        ask=stops(first_stop),
        areas=STOPS,
    ),
    mutation(
        "a stop is returned",
        "chat.stop.string",
        "completions.stop.string",
        "chat.stop.several",
        "completions.stop.several",
        "chat.stop.split-over-tokens",
        "completions.stop.split-over-tokens",
        "chat.stop.shortest",
        "completions.stop.shortest",
        "chat.stop.at-once",
        "completions.stop.at-once",
        "completions.ignore-eos.stop",
        picks=all_of(stopped, whole),
        status=OK,
        tell=with_stop,
        areas=STOPS,
    ),
    mutation(
        "a text ends one character before its stop",
        "chat.stop.string",
        "completions.stop.string",
        "chat.stop.several",
        "completions.stop.several",
        "chat.stop.split-over-tokens",
        "completions.stop.split-over-tokens",
        "chat.stop.shortest",
        "completions.stop.shortest",
        "completions.ignore-eos.stop",
        picks=all_of(stopped, whole),
        status=OK,
        tell=says(lambda text: text[:-1]),
        areas=STOPS,
    ),
    mutation(
        "stops are looked for in lower case",
        "chat.stop.at-once",
        "completions.stop.at-once",
        "completions.stop.string",
        "completions.stop.reason",
        "completions.stop.several",
        "completions.stop.shortest",
        "completions.ignore-eos.stop",
        picks=stopped,
        ask=stops(
            lambda stop: stop.lower() if isinstance(stop, str) else [s.lower() for s in stop]
        ),
        areas=STOPS,
    ),
    mutation(
        "stops are trimmed",
        "completions.stop.at-once",
        picks=stopped,
        ask=stops(
            lambda stop: (
                (stop.strip() or stop) if isinstance(stop, str) else [s.strip() or s for s in stop]
            )
        ),
        areas=STOPS,
    ),
    mutation(
        "ignore_eos switches stops off",
        "completions.ignore-eos.stop",
        picks=where(lambda asked: asked.get("ignore_eos") is True),
        ask=without("stop"),
        areas=STOPS,
    ),
    mutation(
        "no system message",
        "chat.system.taken",
        picks=chat,
        ask=messages(without_system),
        areas=MESSAGES,
    ),
    mutation(
        "the last message alone",
        "chat.messages.conversation",
        "chat.system.taken",
        picks=chat,
        ask=messages(lambda listed: listed[-1:] if len(listed) < 257 else listed),
        areas=MESSAGES,
    ),
    mutation(
        "parts joined by a space",
        "chat.content.joined",
        picks=chat,
        ask=texts(lambda parts: " ".join(part["text"] for part in parts)),
        areas=MESSAGES,
    ),
    mutation(
        "the first part alone",
        "chat.content.joined",
        picks=chat,
        ask=texts(lambda parts: parts[:1]),
        areas=MESSAGES,
    ),
    mutation(
        "parts trimmed of their text",
        "chat.content.joined",
        "chat.content.parts",
        "chat.content.image-marker",
        picks=chat,
        ask=texts(lambda parts: [part | {"text": part["text"][:2]} for part in parts]),
        areas=MESSAGES,
    ),
    mutation(
        "special tokens spelled out",
        "chat.content.special",
        picks=chat,
        ask=in_texts("<|", "< |"),
        areas=MESSAGES,
    ),
    mutation(
        "image markers taken out",
        "chat.content.image-marker",
        picks=chat,
        ask=in_texts(" <image>", ""),
        areas=MESSAGES,
    ),
    mutation(
        "messages shortened",
        "chat.messages.conversation",
        "chat.system.taken",
        "chat.usage.prompt",
        picks=chat,
        ask=contents(lambda content: content[:12] if isinstance(content, str) else content),
        areas=("chat.messages.conversation", "chat.system.taken", "chat.usage.prompt"),
    ),
    mutation(
        "prompts shortened",
        "errors.prompt.*",
        picks=completions,
        ask=fields(
            lambda asked: (
                asked | {"prompt": asked["prompt"][-1000:]}
                if isinstance(asked.get("prompt"), str | list)
                else asked
            )
        ),
        areas=("errors.prompt.too-long", "errors.prompt.param", "errors.prompt.sizes"),
    ),
    mutation(
        "a token before the ids",
        "completions.prompt.ids",
        "completions.prompt.id-range",
        picks=completions,
        ask=ids(lambda listed: [1, *listed]),
        areas=(
            "completions.prompt.ids",
            "completions.prompt.ids-continue",
            "completions.prompt.id-range",
        ),
    ),
    mutation(
        "the first id dropped",
        "completions.prompt.ids",
        "completions.prompt.id-range",
        picks=completions,
        ask=ids(lambda listed: listed[1:] or listed),
        areas=(
            "completions.prompt.ids",
            "completions.prompt.ids-continue",
            "completions.prompt.id-range",
        ),
    ),
    mutation(
        "ids reversed",
        "completions.prompt.ids-continue",
        "completions.prompt.id-range",
        picks=completions,
        ask=ids(lambda listed: listed[::-1]),
        areas=(
            "completions.prompt.ids",
            "completions.prompt.ids-continue",
            "completions.prompt.id-range",
        ),
    ),
    mutation(
        "return_token_ids is not used",
        "fields.token-ids.whole",
        "fields.token-ids.streamed",
        "fields.token-ids.place",
        picks=where(lambda asked: asked.get("return_token_ids") is True),
        ask=without("return_token_ids"),
        areas=("fields.token-ids.whole", "fields.token-ids.streamed", "fields.token-ids.place"),
    ),
    mutation(
        "a prompt that is not rendered",
        "chat.messages.conversation",
        "chat.messages.template",
        "chat.system.taken",
        "chat.usage.prompt",
        picks=all_of(whole, chat),
        status=OK,
        tell=lambda reply, _: reply.with_value(
            reply.value | {"usage": reply.value["usage"] | {"prompt_tokens": 1}}
        ),
        areas=(
            "chat.messages.conversation",
            "chat.messages.template",
            "chat.system.taken",
            "chat.usage.prompt",
        ),
    ),
    mutation(
        "texts are composed",
        "chat.usage.tokenizer",
        "completions.usage.tokenizer",
        picks=generating,
        ask=fields(composed),
        areas=("chat.usage.tokenizer", "completions.usage.tokenizer"),
    ),
]
