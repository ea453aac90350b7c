"""Answers as cases look at them: whole, streamed, or refused.

Everything a server may get wrong raises AssertionError with what was seen, so that a case fails
and never crashes on a target's mistake.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import define, field, frozen

from caldrix_conformance.brief import answered
from caldrix_conformance.endpoints import Endpoint
from caldrix_conformance.events import Event, parse_events

JsonObject = dict[str, Any]


@frozen
class Usage:
    """Token counts as an answer gives them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


@frozen
class Completion:
    """What a whole answer says."""

    text: str
    finish_reason: str
    usage: Usage
    token_ids: tuple[int, ...] | None
    body: JsonObject


@define(slots=False)
class Answer:
    """A response, read to its end."""

    method: str
    path: str
    request: object
    """The JSON value sent, or None."""
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = field(repr=False)
    asked: str = ""
    """What the request asked for, in short, for messages; "" where its path says it."""

    @property
    def seen(self) -> str:
        """What was asked and answered, in short, for messages."""
        return f"{self.method} {self.path}{self.asked} answered {answered(self.status, self.body)}"

    def expect(self, status: int) -> Answer:
        """This answer, which must have ``status``."""
        assert self.status == status, f"wanted {status}; {self.seen}"
        return self

    @cached_property
    def object(self) -> JsonObject:
        """The JSON object that the body must be."""
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise AssertionError(f"the body is not JSON ({error}); {self.seen}") from None
        assert isinstance(value, dict), f"the body is not a JSON object; {self.seen}"
        return value

    @property
    def media_type(self) -> str:
        """The media type without parameters, in lower case; "" for none."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def error(self) -> JsonObject:
        """The object under ``error``, which the body must hold."""
        error = self.object.get("error")
        assert isinstance(error, dict), f"the body has no object under error; {self.seen}"
        return error

    @property
    def error_message(self) -> str:
        """What the error object says."""
        message = self.error.get("message")
        assert isinstance(message, str), f"the message is {message!r}; {self.seen}"
        return message

    def expect_refusal(self, param: str | None, *, within: bool = False) -> JsonObject:
        """The error object of this answer, which must be a 400 that names the field ``param``.

        None is for a refusal with no field at fault. ``within`` takes a more exact place inside
        the field as well, as in ``stop[1]``.
        """
        error = self.expect(400).error
        assert "param" in error, f"the error has no param; {self.seen}"
        seen = error["param"]
        inside = within and isinstance(seen, str) and seen.startswith((f"{param}[", f"{param}."))
        assert seen == param or inside, f"wanted param {param!r}, got {seen!r}; {self.seen}"
        return error

    def completion(self, endpoint: Endpoint) -> Completion:
        """What this answer says, which must be a whole answer of ``endpoint``."""
        body = self.expect(200).object
        try:
            (choice,) = body["choices"]
            text = endpoint.answer_text(choice)
            finish_reason = choice["finish_reason"]
            usage = read_usage(body["usage"])
            ids = choice.get("token_ids")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise AssertionError(f"no answer of {endpoint.path} ({error!r}); {self.seen}") from None
        assert isinstance(text, str), f"the text is {text!r}; {self.seen}"
        assert isinstance(finish_reason, str), f"finish_reason is {finish_reason!r}; {self.seen}"
        return Completion(text, finish_reason, usage, read_ids(ids), body)


@define(slots=False)
class Streamed:
    """What a finished event stream of an endpoint says."""

    answer: Answer
    endpoint: Endpoint

    @cached_property
    def events(self) -> Sequence[Event]:
        """The events, the last one usually ``[DONE]``."""
        return parse_events(self.answer.expect(200).body)

    @cached_property
    def chunks(self) -> Sequence[JsonObject]:
        """The JSON objects of the events, without ``[DONE]``."""
        return chunks_of(self.answer.expect(200).body)

    @cached_property
    def choices(self) -> Sequence[JsonObject]:
        """The choice of each chunk that has one."""
        choices = []
        for chunk in self.chunks:
            listed = chunk.get("choices")
            assert isinstance(listed, list), f"a chunk without choices: {chunk}"
            assert len(listed) <= 1, f"a chunk with more than one choice: {chunk}"
            assert all(isinstance(one, dict) for one in listed), f"no choice: {chunk}"
            choices.extend(listed)
        assert choices, f"no chunk has a choice; {self.answer.seen}"
        return choices

    @cached_property
    def pieces(self) -> Sequence[str]:
        """The texts of the chunks that have some, in order."""
        pieces: list[str] = []
        for choice in self.choices:
            try:
                text = self.endpoint.delta_text(choice)
            except (KeyError, TypeError, AttributeError) as error:
                raise AssertionError(
                    f"no chunk of {self.endpoint.path} ({error!r}): {choice}"
                ) from None
            if text is not None:
                assert isinstance(text, str), f"a chunk's text is {text!r}"
                pieces.append(text)
        return pieces

    @property
    def text(self) -> str:
        """The pieces joined."""
        return "".join(self.pieces)

    @property
    def finish_reasons(self) -> Sequence[object]:
        """The ``finish_reason`` of each choice, in order."""
        return [choice.get("finish_reason") for choice in self.choices]

    @property
    def finish_reason(self) -> object:
        """The last choice's ``finish_reason``."""
        return self.finish_reasons[-1]

    @property
    def usages(self) -> Sequence[JsonObject]:
        """The chunks that carry a usage."""
        return [chunk for chunk in self.chunks if chunk.get("usage") is not None]

    @property
    def usage(self) -> Usage:
        """The usage of the one chunk that must carry it."""
        assert len(self.usages) == 1, f"{len(self.usages)} chunks carry usage; {self.answer.seen}"
        try:
            return read_usage(self.usages[0]["usage"])
        except (KeyError, TypeError) as error:
            raise AssertionError(f"no usage ({error!r}): {self.usages[0]}") from None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The ids of all chunks, joined."""
        joined: list[int] = []
        for chunk in self.chunks:
            choices = chunk.get("choices") or [{}]
            try:
                ids = chunk.get("token_ids", choices[0].get("token_ids"))
            except (LookupError, TypeError, AttributeError):
                raise AssertionError(f"a chunk's choices are {choices!r}") from None
            joined.extend(read_ids(ids) or ())
        return tuple(joined)


def chunks_of(body: bytes) -> list[JsonObject]:
    """The JSON objects in the events of a finished stream, without ``[DONE]``."""
    chunks: list[JsonObject] = []
    for event in parse_events(body):
        if event.data == "[DONE]":
            continue
        try:
            chunk = json.loads(event.data)
        except ValueError:
            raise AssertionError(f"an event's data is not JSON: {event.data!r}") from None
        assert isinstance(chunk, dict), f"an event's data is not an object: {event.data!r}"
        assert "error" not in chunk, f"the stream ends in an error: {event.data}"
        chunks.append(chunk)
    return chunks


def number_in(found: Mapping[str, Any], name: str) -> float:
    """The member ``name``, which must be a finite number."""
    value = found.get(name)
    assert isinstance(value, int | float), f"{name} is {value!r}: {found}"
    assert not isinstance(value, bool), f"{name} is {value!r}: {found}"
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    assert math.isfinite(number), f"{name} is {value!r}: {found}"
    return number


def numbers_in(message: str) -> set[int]:
    """The whole numbers that a message tells, with or without separators of thousands."""
    text = re.sub(r"(?<=\d)[,_](?=\d{3})", "", message)
    return {int(digits) for digits in re.findall(r"\d{1,18}", text)}


def read_usage(value: Any) -> Usage:
    """The counts of a ``usage`` object; KeyError or TypeError where it is none."""
    counts = [value[name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")]
    for count in counts:
        if not isinstance(count, int) or isinstance(count, bool):
            raise TypeError(f"the count {count!r} is not an integer")
    return Usage(*counts)


def read_ids(value: object) -> tuple[int, ...] | None:
    """The token ids of an answer, None for none; AssertionError where they are none."""
    if value is None:
        return None
    assert isinstance(value, list), f"token_ids is {value!r}"
    assert all(isinstance(item, int) and not isinstance(item, bool) for item in value), (
        f"token_ids holds something else than integers: {value!r}"
    )
    return tuple(value)
