"""Stop strings on both endpoints, cut out of the text that the model gives without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import frozen

from caldrix_conformance.answers import Completion, Streamed
from caldrix_conformance.endpoints import COMPLETIONS, Endpoint
from caldrix_conformance.marks import checks
from caldrix_conformance.prompts import BEYOND_ASCII
from caldrix_conformance.tables import each, on_each
from caldrix_conformance.target import Target

NEVER = "\N{SNOWMAN}never"


@frozen
class Told:
    """A text, the pieces it was streamed in, and how to ask for it again."""

    pieces: Sequence[str]
    text: str
    ask: Callable[..., Completion]
    stream: Callable[..., Streamed]


@pytest.fixture
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
        if end > 1 and len(stop) == 3 and told.text.find(stop) == end - 1:
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


@on_each("stop.string")
def test_string(told: Told) -> None:
    stop = whole_stops(told)[-1]
    expect_text(told.ask(stop=stop), until(told.text, stop), stop)


@on_each("stop.reason")
def test_reason(told: Told) -> None:
    reason = told.ask(stop=whole_stops(told)[-1]).finish_reason
    assert reason == "stop", f"finish_reason is {reason!r}"


@on_each("stop.several")
def test_several(told: Told) -> None:
    stops = [NEVER, *whole_stops(told), NEVER + "!"]
    expect_text(told.ask(stop=stops), until(told.text, *stops), stops)


@on_each("stop.split-over-tokens")
def test_split(told: Told) -> None:
    stop = split_stop(told)
    expect_text(told.ask(stop=stop), until(told.text, stop), stop)


@on_each("stop.shortest")
def test_shortest(told: Told) -> None:
    letters = [one for one in told.text[1:] if one.isascii() and one != told.text[0]]
    assert letters, f"no letters in {told.text!r}"
    stop = letters[0]
    expect_text(told.ask(stop=[stop]), until(told.text, stop), stop)


@on_each("stop.at-once")
def test_at_once(told: Told) -> None:
    stop = told.text[:2]
    expect_text(told.ask(stop=stop), "", stop)


@on_each("stop.prompt")
def test_prompt(target: Target, endpoint: Endpoint) -> None:
    """What the prompt holds is no part of the text."""
    prompt = endpoint.prompt(f"Count on, {NEVER}: one, two, three,")
    wanted, seen = (
        target.complete(endpoint, **prompt, max_tokens=4, stop=stop) for stop in (None, NEVER)
    )
    if NEVER in wanted.text:
        pytest.skip("the model repeats the prompt")
    expect_text(seen, wanted.text, NEVER)


@on_each("stop.characters")
def test_characters(target: Target, endpoint: Endpoint) -> None:
    """Such characters come in several tokens, none of which holds the whole of one."""
    prompt = endpoint.prompt(BEYOND_ASCII)
    text = target.complete(endpoint, **prompt, max_tokens=24).text
    stop = next((character for character in text if ord(character) > 0x2000), None)
    if stop is None or stop == "\ufffd":
        pytest.skip(f"the model writes no such characters: {text!r}")
    seen = target.complete(endpoint, **prompt, max_tokens=24, stop=stop)
    expect_text(seen, until(text, stop), stop)


@checks("completions.ignore-eos.stop")
@pytest.mark.parametrize("endpoint", [COMPLETIONS])
def test_ignoring_eos(told: Told) -> None:
    stop = whole_stops(told)[-1]
    answer = told.ask(stop=stop, ignore_eos=True)
    expect_text(answer, until(told.text, stop), stop)
    assert answer.finish_reason == "stop", f"finish_reason is {answer.finish_reason!r}"


@on_each("streaming.stop.hidden")
def test_hidden(told: Told) -> None:
    stop = split_stop(told)
    seen, wanted = told.stream(stop=stop), until(told.text, stop)
    assert seen.text == wanted, f"stop {stop!r} streamed {seen.text!r}, wanted {wanted!r}"
    assert seen.finish_reason == "stop", f"finish_reason is {seen.finish_reason!r}"


@on_each("streaming.stop.released")
def test_released(told: Told) -> None:
    seen = told.stream(stop=told.text[-3:] + NEVER).text
    assert seen == told.text, f"streamed {seen!r}, wanted {told.text!r}"


FOUR = ["a" * 256, "b" * 256, "c" * 256, "d" * 256]
TAKEN: dict[str, list[Any]] = {
    "stop.longest": ["x" * 256, ["é" * 128]],
    "stop.four": [FOUR],
    "stop.none": [None, []],
}


@pytest.mark.parametrize(
    ("endpoint", "stop"),
    [row for topic, stops in TAKEN.items() for stop in stops for row in each(topic, stop)],
)
def test_taken(target: Target, endpoint: Endpoint, stop: object) -> None:
    target.complete(endpoint, stop=stop)


REFUSED: dict[str, list[Any]] = {
    "stop.five": [list("abcde")],
    "stop.too-long": ["x" * 257, ["ok", "é" * 129]],
    "stop.empty": ["", ["ok", ""]],
    "stop.type": [7, True, {"a": "b"}, ["ok", 7], [["ok"]], ["ok", None]],
}


@pytest.mark.parametrize(
    ("endpoint", "stop"),
    [row for topic, stops in REFUSED.items() for stop in stops for row in each(topic, stop)],
)
def test_refused(target: Target, endpoint: Endpoint, stop: object) -> None:
    target.ask(endpoint, stop=stop).expect_refusal("stop", within=True)
