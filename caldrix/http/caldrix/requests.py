"""The two requests as typed values, and the rules that join several of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, TypeVar

from attrs import frozen

from caldrix.engine.sampling import SamplingSettings
from caldrix.http.body import LongInteger
from caldrix.http.caldrix.fields import (
    NOT_IMPLEMENTED,
    Flag,
    MinP,
    RepetitionPenalty,
    Seed,
    Stop,
    String,
    Temperature,
    TokenCount,
    TopK,
    TopP,
    is_neutral,
)
from caldrix.http.caldrix.messages import Message, read_messages
from caldrix.http.decoding import Invalid, Rule, decode, read_object, spell
from caldrix.http.errors import ApiError

Value = TypeVar("Value")


def _read_prompt(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        if not value:
            raise Invalid("must not be empty")
        return value
    if not isinstance(value, list):
        raise Invalid(f"must be a string or an array of token ids, got {spell(value)}")
    if not value:
        raise Invalid("must not be empty")
    if isinstance(value[0], str | list):
        what = "strings" if isinstance(value[0], str) else "arrays"
        raise Invalid(
            f"must be one string or one array of token ids; an array of {what} is not implemented"
        )
    for index, token in enumerate(value):
        if isinstance(token, LongInteger):
            raise Invalid(token.refusal, (index,))
        if isinstance(token, bool) or not isinstance(token, int):
            raise Invalid(f"must be a token id, an integer, got {spell(token)}", (index,))
    return tuple(value)


@frozen
class StreamOptions:
    """``stream_options``."""

    include_usage: Flag = False


def _read_options(value: object) -> StreamOptions:
    if not isinstance(value, dict):
        raise Invalid(f"must be an object, got {spell(value)}")
    return read_object(value, StreamOptions)


@frozen(kw_only=True)
class AnswerFields:
    """The fields that both endpoints take."""

    model: String
    stream: Flag = False
    stream_options: Annotated[StreamOptions, Rule(_read_options)] | None = None
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    stop: Stop = ()
    ignore_eos: Flag = False
    return_token_ids: Flag = False
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    seed: Seed | None = None

    @property
    def most_tokens(self) -> int | None:
        """The cap on the answer, under either of its names; None without one."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return self.stream_options is not None and self.stream_options.include_usage

    def sampling(self, defaults: SamplingSettings) -> SamplingSettings:
        """The settings in force: each field that is given, or the server's default."""
        seed = _given(self.seed, defaults.seed)
        return SamplingSettings(
            temperature=_given(self.temperature, defaults.temperature),
            top_k=max(0, _given(self.top_k, defaults.top_k)),
            top_p=_given(self.top_p, defaults.top_p),
            min_p=_given(self.min_p, defaults.min_p),
            repetition_penalty=_given(self.repetition_penalty, defaults.repetition_penalty),
            seed=None if seed == -1 else seed,
        )


def _given(value: Value | None, default: Value) -> Value:
    return default if value is None else value


@frozen(kw_only=True)
class ChatRequest(AnswerFields):
    """POST /v1/chat/completions."""

    messages: Annotated[tuple[Message, ...], Rule(read_messages)]


@frozen(kw_only=True)
class CompletionRequest(AnswerFields):
    """POST /v1/completions: a text, or token ids not yet held against the vocabulary."""

    prompt: Annotated[str | tuple[int, ...], Rule(_read_prompt)]


Request = TypeVar("Request", bound=AnswerFields)


def read_request(
    body: Mapping[str, object], request_class: type[Request], *, served_name: str
) -> Request:
    """A request to the model ``served_name``. Raises ApiError, a 400 naming the field at fault."""
    for name, neutral in NOT_IMPLEMENTED.items():
        if name in body and not is_neutral(body[name], neutral):
            raise _not_implemented(name, neutral)
    request = decode(body, request_class)
    check_model(request.model, served_name)
    caps = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(caps) > 1:
        raise ApiError(
            400,
            f"is another name of max_tokens, got {spell(request.max_completion_tokens)} "
            f"and {spell(request.max_tokens)}; send one of them",
            param="max_completion_tokens",
        )
    if request.stream_options is not None and not request.stream:
        raise ApiError(400, 'is only taken together with "stream": true', param="stream_options")
    return request


def check_model(asked: str, served_name: str) -> None:
    """Raises ApiError, a 400, unless the served model is asked for."""
    if asked != served_name:
        raise ApiError(
            400,
            f"this server serves {spell(served_name)}, not {spell(asked)}",
            param="model",
        )


def refuse_other_prompt(body: Mapping[str, object], wrong: str, right: str) -> None:
    """Refuses the other endpoint's field for the prompt, unless it is null."""
    if body.get(wrong) is not None:
        raise ApiError(400, f"{wrong} is refused here; send {right}", param=wrong)


def _not_implemented(name: str, neutral: tuple[object, ...]) -> ApiError:
    *values, last = ("absent", "null", *(json.dumps(value) for value in neutral))
    return ApiError(
        400,
        f"{name} is not implemented; it is accepted only when {', '.join(values)} or {last}",
        param=name,
    )
