"""The incremental UTF-8 assembler."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from caldrix.text.utf8 import Utf8Assembler

# Bytes that are often nearly text: whole characters, their beginnings, and stray bytes.
nearly_text = st.lists(
    st.one_of(
        st.text(max_size=3).map(lambda text: text.encode("utf-8", "ignore")),
        st.sampled_from(["é", "€", "𝄞", "👩‍👩‍👧"]).flatmap(
            lambda text: st.integers(0, 4).map(lambda end: text.encode()[:end])
        ),
        st.binary(max_size=3),
    )
).map(b"".join)


@given(nearly_text, st.data())
def test_pieces_join_to_the_whole(whole: bytes, data: st.DataObject) -> None:
    assembler = Utf8Assembler()
    text, start = "", 0
    while start < len(whole):
        end = data.draw(st.integers(start + 1, len(whole)))
        text += assembler.push(whole[start:end])
        start = end
    assert text + assembler.flush() == whole.decode("utf-8", "replace")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_character_leaves_with_its_last_byte(text: str) -> None:
    assembler = Utf8Assembler()
    for character in text:
        *first, last = character.encode()
        assert [assembler.push(bytes([byte])) for byte in first] == [""] * len(first)
        assert assembler.push(bytes([last])) == character
    assert assembler.flush() == ""


def test_a_flushed_assembler_starts_a_new_text() -> None:
    assembler = Utf8Assembler()
    assert assembler.push("€".encode()[:2]) == ""
    assert assembler.flush() == "\ufffd"
    assert assembler.push("€".encode()) == "€"
