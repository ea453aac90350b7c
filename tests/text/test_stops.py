"""The stop-string machine, against a definition that looks at the whole stream at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.text.stops import StopMatcher
from tests.support.whole_text import first_stop

# Few characters, so that stops overlap themselves and each other.
letters = st.text("ab", max_size=30)
stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@given(letters, stop_lists, st.data())
def test_any_cut_gives_the_whole_stream_s_answer(
    stream: str, stops: list[str], data: st.DataObject
) -> None:
    matcher = StopMatcher(stops)
    sent, start = "", 0
    while start < len(stream) and matcher.matched is None:
        end = data.draw(st.integers(start + 1, len(stream)))
        sent += matcher.push(stream[start:end])
        start = end
    assert (sent + matcher.flush(), matcher.matched) == first_stop(stream, stops)


@given(letters, stop_lists)
def test_only_what_can_become_a_stop_is_held(stream: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    sent = ""
    for position, character in enumerate(stream, start=1):
        sent += matcher.push(character)
        if matcher.matched is not None:
            break
        held = stream[len(sent) : position]
        tails = [stream[start:position] for start in range(position)]
        longest = next((t for t in tails if any(stop.startswith(t) for stop in stops)), "")
        assert held == longest


def test_the_earliest_completed_stop_wins_even_inside_a_longer_one() -> None:
    matcher = StopMatcher(["abcd", "bc"])
    assert matcher.push("xab") == "x"
    assert matcher.push("cd") == "a"
    assert matcher.matched == "bc"
    assert matcher.flush() == ""


def test_stops_completed_together_are_cut_whole() -> None:
    matcher = StopMatcher(["\n\n", "END\n\n"])
    assert matcher.push("text END\n\n") == "text "
    assert matcher.matched == "END\n\n"


def test_text_after_a_stop_in_the_same_piece_is_dropped() -> None:
    matcher = StopMatcher(["</s>"])
    assert matcher.push("one</s>two</s>") == "one"
    with pytest.raises(RuntimeError, match="ended"):
        matcher.push("three")


def test_a_failed_stop_is_released_from_its_first_character() -> None:
    matcher = StopMatcher(["aab"])
    assert [matcher.push(letter) for letter in "aaac"] == ["", "", "a", "aac"]
    assert matcher.matched is None


def test_an_empty_stop_is_an_error() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
