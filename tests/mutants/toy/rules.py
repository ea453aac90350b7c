"""What the toy server refuses: a table of rules, each the field it names and what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

Body = Mapping[str, Any]


@frozen
class Refused(Exception):
    """A request that gets an error object."""

    status: int
    message: str
    param: str | None = None


def is_integer(value: Any) -> bool:
    return type(value) is int


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def is_flag(value: Any) -> bool:
    return value is None or type(value) is bool


def is_stop(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return value is None or (
        isinstance(stops, list)
        and len(stops) <= 4
        and all(isinstance(stop, str) and 1 <= len(stop.encode()) <= 256 for stop in stops)
    )


def is_options(value: Any) -> bool:
    if isinstance(value, dict) and not is_flag(value.get("include_usage")):
        raise Refused(400, "no flag", "stream_options.include_usage")
    return value is None or isinstance(value, dict)


def is_cap(value: Any) -> bool:
    return value is None or (is_integer(value) and value >= 1)


Rule = Callable[[Any], bool]

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "top_logprobs": (0,),
    "best_of": (1,),
    "logprobs": (False, 0),
    "logit_bias": ({},),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
}


def _neutral(values: tuple[Any, ...]) -> Rule:
    # By type as well: true is no 1.
    return lambda v: v is None or (type(v), v) in [(type(one), one) for one in values]


FIELDS: dict[str, Rule] = {
    "max_tokens": is_cap,
    "max_completion_tokens": is_cap,
    "stop": is_stop,
    "stream": is_flag,
    "ignore_eos": is_flag,
    "return_token_ids": is_flag,
    "stream_options": is_options,
    "temperature": lambda v: v is None or (is_number(v) and v >= 0),
    "top_k": lambda v: v is None or (is_integer(v) and v >= -1),
    "top_p": lambda v: v is None or (is_number(v) and 0 < v <= 1),
    "min_p": lambda v: v is None or (is_number(v) and 0 <= v <= 1),
    "repetition_penalty": lambda v: v is None or (is_number(v) and v > 0),
    "seed": lambda v: v is None or (is_integer(v) and v >= -1),
    **{name: _neutral(value) for name, value in NEUTRAL.items()},
}
"""Fields of both endpoints: whether a value is taken."""

WORDS = {"top_p": "must be 0 < p <= 1, got {}"}


def check_fields(body: Body, rules: Mapping[str, Rule]) -> None:
    for name, takes in rules.items():
        if name in body and not takes(body[name]):
            raise Refused(400, WORDS.get(name, "got {}").format(body[name]), name)
    if body.get("stream_options") is not None and not body.get("stream"):
        raise Refused(400, "only with stream", "stream_options")
    caps = {body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)}
    if len(caps) > 1:
        raise Refused(400, "two caps", "max_tokens")


def read_messages(body: Body, *, most: int = 256, joint: str = "\n") -> list[str]:
    """The texts of the messages."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not 1 <= len(messages) <= most:
        raise Refused(400, f"1 to {most} messages", "messages")
    return [_content(message, f"messages[{i}]", joint) for i, message in enumerate(messages)]


def _content(message: Any, place: str, joint: str) -> str:
    if not isinstance(message, dict):
        raise Refused(400, "no object", place)
    if not (isinstance(message.get("role"), str) and message["role"]):
        raise Refused(400, "no role", f"{place}.role")
    for call in ("tool_calls", "function_call"):
        if message.get(call):
            raise Refused(400, "not implemented", f"{place}.{call}")
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise Refused(400, "no content", f"{place}.content")
    return joint.join(_part(part, f"{place}.content[{i}]") for i, part in enumerate(content))


def _part(part: Any, place: str) -> str:
    if isinstance(part, dict) and part.get("type") == "image_url":
        raise Refused(400, "this model takes text only", place)
    if not (isinstance(part, dict) and part.get("type") == "text"):
        raise Refused(400, "no part", place)
    if not isinstance(part.get("text"), str):
        raise Refused(400, "no text", place)
    return str(part["text"])


def read_prompt(body: Body, vocabulary: int) -> str | list[int]:
    """The prompt of a completion."""
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise Refused(400, "no prompt", "prompt")
    if set(map(type, prompt)) != {int} or min(prompt) < 0 or max(prompt) >= vocabulary:
        place = next(
            i for i, t in enumerate(prompt) if not is_integer(t) or not 0 <= t < vocabulary
        )
        raise Refused(400, "no token id", f"prompt[{place}]")
    return prompt
