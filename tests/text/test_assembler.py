"""From tokens to sent text: whatever the cuts, the joined stream is the text computed whole."""

from __future__ import annotations

from itertools import pairwise

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from caldrix.text.assembler import TextAssembler
from tests.support.whole_text import first_stop


@frozen
class Pieces:
    """A tokenizer whose token ids are indices into a list of bytes."""

    pieces: list[bytes]

    def token_bytes(self, token_id: int) -> bytes:
        return self.pieces[token_id]


def send(pieces: list[bytes], stops: list[str]) -> tuple[str, bool, bool]:
    """The joined stream, whether a stop ended it, and whether generation went on to its end."""
    assembler = TextAssembler(Pieces(pieces), stops)
    sent = ""
    for token_id in range(len(pieces)):
        sent += assembler.push(token_id)
        if assembler.stopped:
            return sent + assembler.finish(), True, False
    sent += assembler.finish()
    return sent, assembler.stopped, True


characters = st.sampled_from(["a", "b", "é", "€", "𝄞", "\n"])
stops = st.lists(st.lists(characters, min_size=1, max_size=4).map("".join), max_size=4)
texts = st.lists(st.one_of(characters.map(str.encode), st.binary(max_size=2)), max_size=20)


@given(texts.map(b"".join), stops, st.data())
def test_any_tokens_give_the_whole_text_s_answer(
    whole: bytes, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=25)))
    edges = [0, *cuts, len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    sent, stopped, _ = send(pieces, stops)
    expected, matched = first_stop(whole.decode("utf-8", "replace"), stops)
    assert (sent, stopped) == (expected, matched is not None)


def test_a_stop_split_over_tokens_and_bytes_never_leaks() -> None:
    euro = "€".encode()
    assert send([b"5 ", euro[:1], euro[1:] + b"!", b"!x"], ["€!!"]) == ("5 ", True, False)


def test_an_ended_generation_sends_its_held_tail() -> None:
    assert send([b"hold <", b"/"], ["</s>"]) == ("hold </", False, True)
    assert send([b"cut ", "€".encode()[:2]], []) == ("cut \ufffd", False, True)


def test_a_cut_character_can_complete_a_stop_at_the_end() -> None:
    assert send([b"a", b"\xe2"], ["\ufffd"]) == ("a", True, True)


def test_a_stopped_assembler_takes_no_more_tokens() -> None:
    assembler = TextAssembler(Pieces([b"ab"]), ["b"])
    assert assembler.push(0) == "a"
    with pytest.raises(RuntimeError):
        assembler.push(0)
