"""Servers that make the best of a request which they must refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any

from tests.mutants.exchange import Mutation, Request, mutation
from tests.mutants.rewriting import MODEL, Ask, Json, chat, completions, fields, without

Test = Callable[[Any], Any]

USER = {"role": "user", "content": "Hi"}
VOCABULARY = 49152


def changed(name: str, change: Callable[[Any], Any]) -> Ask:
    """Another value of a field, if it is there."""
    return fields(lambda asked: asked | {name: change(asked[name])} if name in asked else asked)


def default(name: str, value: Any) -> Ask:
    """A value for a field that is absent or null."""
    return fields(lambda asked: asked | ({} if asked.get(name) is not None else {name: value}))


def instead(name: str, wrong: Test, value: Any) -> Ask:
    """Another value of a field that is wrong."""
    return changed(name, lambda given: value if wrong(given) else given)


def each_message(mend: Callable[[Any], Any]) -> Ask:
    """Another message for each."""
    return changed(
        "messages",
        lambda listed: [mend(message) for message in listed] if is_a(list)(listed) else listed,
    )


def only_parts(keep: Test) -> Ask:
    """Parts left out, but never the first of a message."""

    def mend(message: Any) -> Any:
        if not isinstance(message, dict) or not isinstance(message.get("content"), list):
            return message
        first, *others = message["content"]
        return message | {"content": [first, *filter(keep, others)]}

    return each_message(mend)


def is_a(*types: type) -> Test:
    return lambda value: isinstance(value, types)


def no(*types: type) -> Test:
    return lambda value: not isinstance(value, types)


def holds(kind: Test) -> Test:
    """Arrays whose first item is of a kind."""
    return lambda value: isinstance(value, list) and value and kind(value[0])


def kind_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def is_malformed(part: Any) -> bool:
    kind = kind_of(part)
    return not isinstance(kind, str) or (kind == "text" and not isinstance(part.get("text"), str))


def with_role(message: Any) -> Any:
    if isinstance(message, dict) and not isinstance(message.get("role"), str):
        return message | {"role": "user"}
    return message


def with_content(message: Any) -> Any:
    return {"content": "Hi"} | message if isinstance(message, dict) else message


def with_text(message: Any) -> Any:
    if isinstance(message, dict) and not isinstance(message.get("content", ""), str | list):
        return message | {"content": str(message["content"])}
    return message


def known_id(token_id: Any) -> Any:
    return token_id % VOCABULARY if type(token_id) is int else token_id


def whole_id(token_id: Any) -> Any:
    return token_id if type(token_id) is int else 1


def too_long(stop: Any) -> bool:
    stops = stop if isinstance(stop, list) else [stop]
    return any(isinstance(one, str) and len(one.encode()) > 256 for one in stops)


def one_cap(asked: Json) -> Json:
    if "max_tokens" in asked:
        return {name: asked[name] for name in asked if name != "max_completion_tokens"}
    return asked


def with_stream_only(asked: Json) -> Json:
    return asked if asked.get("stream") else {k: asked[k] for k in asked if k != "stream_options"}


MENDS: dict[str, Ask] = {
    "chat.model.required": default("model", MODEL),
    "chat.model.type": instead("model", no(str), MODEL),
    "chat.messages.required": default("messages", [USER]),
    "chat.messages.type": instead("messages", no(list, NoneType), [USER]),
    "chat.messages.none": changed("messages", lambda listed: listed or [USER]),
    "chat.messages.too-many": changed("messages", lambda listed: listed[:256]),
    "chat.messages.item": each_message(lambda given: given if isinstance(given, dict) else USER),
    "chat.messages.role": each_message(with_role),
    "chat.content.type": each_message(with_text),
    "chat.content.required": each_message(with_content),
    "chat.content.part-type": only_parts(lambda part: kind_of(part) in ("text", "image_url")),
    "chat.content.part-malformed": only_parts(lambda part: not is_malformed(part)),
    "chat.content.image-refused": only_parts(lambda part: kind_of(part) != "image_url"),
    "chat.prompt.refused": without("prompt"),
    "chat.max-tokens.contradiction": fields(one_cap),
    "chat.stop.five": changed("stop", lambda stop: stop[:4] if isinstance(stop, list) else stop),
    "chat.stop.too-long": instead("stop", too_long, None),
    "chat.stop.empty": instead("stop", lambda stop: stop == "" or stop == ["ok", ""], None),
    "streaming.options.alone": fields(with_stream_only),
    "completions.prompt.required": default("prompt", "Hi"),
    "completions.prompt.type": instead("prompt", no(str, list, NoneType), "Hi"),
    "completions.prompt.empty": instead("prompt", lambda prompt: prompt in ("", []), "Hi"),
    "completions.prompt.batch": instead("prompt", holds(is_a(str, list)), "Hi"),
    "completions.prompt.id-type": changed(
        "prompt", lambda given: [*map(whole_id, given)] if holds(is_a(int))(given) else given
    ),
    "completions.prompt.id-range": changed(
        "prompt", lambda given: [*map(known_id, given)] if holds(is_a(int))(given) else given
    ),
    "completions.messages.refused": without("messages"),
}
"""What a server makes of a request that the clause has refused."""


def lenient(about: str) -> Mutation:
    """All mends of the clauses whose ids begin so."""
    mends = {clause_id: mend for clause_id, mend in MENDS.items() if clause_id.startswith(about)}
    on_completions = about.startswith("completions")

    def ask(request: Request) -> Request:
        for mend in mends.values():
            request = mend(request)
        return request

    return mutation(
        f"lenient: {about}",
        *mends,
        picks=completions if on_completions else chat,
        ask=ask,
        areas=mends,
    )


GROUPS: Sequence[str] = (
    "chat.model",
    "chat.messages",
    "chat.content",
    "chat.prompt",
    "chat.max-tokens",
    "chat.stop",
    "streaming.options",
    "completions.prompt",
    "completions.messages",
)
MUTATIONS = [lenient(about) for about in GROUPS]
