"""n-gram lookup against a slow search through the whole text."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caldrix.engine.speculation.ngram import LONGEST_SUFFIX, NgramProposer, SuffixLengths
from caldrix.engine.speculation.proposer import Guess


def proposed(tokens: Sequence[int], most: int, *, lengths: str = "2:4") -> Guess:
    shortest, longest = map(int, lengths.split(":"))
    return NgramProposer(SuffixLengths(shortest, longest)).propose(tokens, most)


def searched(tokens: Sequence[int], most: int, lengths: SuffixLengths) -> Guess:
    """What the proposer should find, by comparing the suffix with every place."""
    for length in range(lengths.longest, lengths.shortest - 1, -1):
        suffix = list(tokens[len(tokens) - length :])
        for end in range(len(tokens) - 1, length - 1, -1):
            if length <= len(tokens) and list(tokens[end - length : end]) == suffix:
                text = list(tokens)
                for _ in range(most):
                    text.append(text[end + len(text) - len(tokens)])
                return Guess(tuple(text[len(tokens) :]), length - lengths.shortest)
    return Guess()


small_texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
some_lengths = st.tuples(st.integers(1, 5), st.integers(0, 3)).map(
    lambda pair: SuffixLengths(pair[0], pair[0] + pair[1])
)


@given(small_texts, st.integers(1, 8), some_lengths)
def test_it_finds_what_a_search_finds(tokens: list[int], most: int, lengths: SuffixLengths) -> None:
    assert NgramProposer(lengths).propose(tokens, most) == searched(tokens, most, lengths)


@given(st.lists(small_texts, min_size=1, max_size=3), some_lengths, st.data())
def test_however_a_text_is_read(
    texts: list[list[int]], lengths: SuffixLengths, data: st.DataObject
) -> None:
    proposer = NgramProposer(lengths)
    for tokens in texts:
        proposer.begin()
        known = array("q")
        for token in tokens:
            known.append(token)
            if data.draw(st.booleans()):
                proposer.read(known)
            if data.draw(st.booleans()):
                assert proposer.propose(known, 3) == searched(known, 3, lengths)
        assert proposer.propose(known, 8) == searched(known, 8, lengths)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 4, 9, 1, 2], Guess((3, 4, 9, 1, 2, 3, 4, 9), 0)),
        ([1, 2, 3, 8, 1, 2, 3, 7, 1, 2, 3], Guess((7, 1, 2, 3, 7, 1, 2, 3), 1)),
        ([0, 5, 6, 8, 1, 5, 6, 7, 0, 5, 6], Guess((8, 1, 5, 6, 7, 0, 5, 6), 1)),
        ([5, 5, 5], Guess((5,) * 8, 0)),
        ([1, 2, 1, 2, 1, 2], Guess((1, 2, 1, 2, 1, 2, 1, 2), 2)),
        ([1, 2, 3, 4, 5, 6], Guess()),
        ([1], Guess()),
        ([1, 1], Guess()),
    ],
    ids=["goes on", "latest", "longest", "one token", "period", "new", "short", "no suffix before"],
)
def test_examples(tokens: list[int], expected: Guess) -> None:
    assert proposed(tokens, 8) == expected


def test_a_repeated_line_is_guessed_to_any_length_from_its_second_time_on() -> None:
    line = [10, 11, 12]
    assert proposed(line * 2, 8) == Guess((10, 11, 12, 10, 11, 12, 10, 11), 1)


def test_kinds_are_the_lengths() -> None:
    assert NgramProposer(SuffixLengths(2, 4)).kinds == 3
    assert NgramProposer(SuffixLengths(1, 1)).kinds == 1


@pytest.mark.parametrize(("shortest", "longest"), [(0, 2), (3, 2), (2, LONGEST_SUFFIX + 1)])
def test_lengths_that_make_no_sense(shortest: int, longest: int) -> None:
    with pytest.raises(ValueError, match=r"."):
        SuffixLengths(shortest, longest)
