"""Stop strings on both endpoints, cut out of the text that the model gives without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import frozen

from caldrix_conformance.answers import Completion, Streamed
from caldrix_conformance.endpoints import CHAT, COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.tables import row
from caldrix_conformance.target import Target

NEVER = "\N{SNOWMAN}never"


@frozen
class Told:
    """A text, the pieces it was streamed in, and how to ask for it again."""

    pieces: Sequence[str]
    text: str
    ask: Callable[..., Completion]
    stream: Callable[..., Streamed]


@pytest.fixture(scope="session")
def chat(target: Target, chat_completion: Completion, chat_stream: Streamed) -> Told:
    return told(target, CHAT, chat_completion, chat_stream)


@pytest.fixture(scope="session")
def text(target: Target, text_completion: Completion, text_stream: Streamed) -> Told:
    return told(target, COMPLETIONS, text_completion, text_stream)


def told(target: Target, endpoint: Endpoint, whole: Completion, stream: Streamed) -> Told:
    assert isinstance(stream.answer.request, dict)
    body: dict[str, Any] = {
        name: value for name, value in stream.answer.request.items() if name != "stream"
    }

    def ask(**fields: Any) -> Completion:
        return target.complete(endpoint, **body, **fields)

    def streamed(**fields: Any) -> Streamed:
        return target.stream(endpoint, **body, **fields)

    return Told(stream.pieces, whole.text, ask, streamed)


def split_stop(told: Told) -> str:
    """A piece of the text, not at its beginning, that spans two of the chunks it came in."""
    end = 0
    for piece in told.pieces[:-1]:
        end += len(piece)
        stop = told.text[end - 1 : end + 2]
        if end > 1 and len(stop) == 3 and told.text.index(stop) == end - 1:
            return stop
    raise AssertionError(f"no stop can be split over these pieces: {told.pieces}")


def whole_stops(told: Told) -> list[str]:
    """Two words of the text, the one that comes first last; it begins with neither."""
    stops = [word for word in told.text.split()[1:] if not told.text.startswith(word)]
    assert stops, f"no words in {told.text!r}"
    return stops[:2][::-1]


def until(text: str, *stops: str) -> str:
    """``text`` up to the first of ``stops``."""
    return text[: min(text.index(stop) for stop in stops if stop in text)]


def expect_text(answer: Completion, wanted: str, stops: object) -> None:
    assert answer.text == wanted, f"stop {stops!r} gave {answer.text!r}, wanted {wanted!r}"


@checks("chat.stop.string")
def test_string(chat: Told) -> None:
    stop = whole_stops(chat)[-1]
    expect_text(chat.ask(stop=stop), until(chat.text, stop), stop)


@checks("chat.stop.reason")
def test_reason(chat: Told) -> None:
    reason = chat.ask(stop=whole_stops(chat)[-1]).finish_reason
    assert reason == "stop", f"finish_reason is {reason!r}"


@checks("chat.stop.several")
def test_several(chat: Told) -> None:
    stops = [NEVER, *whole_stops(chat), NEVER + "!"]
    expect_text(chat.ask(stop=stops), until(chat.text, *stops), stops)


@checks("chat.stop.split-over-tokens")
def test_split(chat: Told) -> None:
    stop = split_stop(chat)
    expect_text(chat.ask(stop=stop), until(chat.text, stop), stop)


@checks("completions.stop.as-chat")
def test_completions(text: Told) -> None:
    stop = split_stop(text)
    answer = text.ask(stop=[NEVER, stop])
    expect_text(answer, until(text.text, stop), stop)
    assert answer.finish_reason == "stop", f"finish_reason is {answer.finish_reason!r}"


@checks("completions.ignore-eos.stop")
def test_ignoring_eos(text: Told) -> None:
    stop = whole_stops(text)[-1]
    answer = text.ask(stop=stop, ignore_eos=True)
    expect_text(answer, until(text.text, stop), stop)
    assert answer.finish_reason == "stop", f"finish_reason is {answer.finish_reason!r}"


@checks("streaming.stop.hidden")
def test_hidden(chat: Told) -> None:
    stop = split_stop(chat)
    seen, wanted = chat.stream(stop=stop).text, until(chat.text, stop)
    assert seen == wanted, f"stop {stop!r} streamed {seen!r}, wanted {wanted!r}"


@checks("streaming.stop.released")
def test_released(chat: Told) -> None:
    seen = chat.stream(stop=chat.text[-3:] + NEVER).text
    assert seen == chat.text, f"streamed {seen!r}, wanted {chat.text!r}"


TAKEN = [
    row("chat.stop.longest", "x" * 256),
    row("chat.stop.longest", ["é" * 128]),
    row("chat.stop.none", None),
    row("chat.stop.none", []),
]


@pytest.mark.parametrize("stop", TAKEN)
def test_taken(target: Target, stop: object) -> None:
    target.ask(CHAT, stop=stop).expect(200)


REFUSED: dict[str, list[Any]] = {
    "chat.stop.five": [list("abcde")],
    "chat.stop.too-long": ["x" * 257, ["ok", "é" * 129]],
    "chat.stop.empty": ["", ["ok", ""]],
    "chat.stop.type": [7, True, {"a": "b"}, ["ok", 7], [["ok"]]],
}


@pytest.mark.parametrize(
    ("endpoint", "stop"),
    [
        *(row(clause, CHAT, stop) for clause, stops in REFUSED.items() for stop in stops),
        *(
            row("completions.stop.as-chat", COMPLETIONS, stop)
            for stops in REFUSED.values()
            for stop in stops
        ),
    ],
)
def test_refused(target: Target, endpoint: Endpoint, stop: object) -> None:
    target.ask(endpoint, stop=stop).expect_refusal("stop", within=True)
