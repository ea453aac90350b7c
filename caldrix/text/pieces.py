"""Vocabulary entries as bytes: what a token's written form stands for.

Two conventions cover generating models. Byte-level vocabularies write each byte as one printable
character (GPT-2). SentencePiece vocabularies write a space as U+2581 and bytes that no piece
covers as ``<0x00>`` to ``<0xFF>``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Protocol

from attrs import frozen

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space."""

BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")


class PieceBytes(Protocol):
    """A vocabulary's convention."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether encoding puts a space before a text, which decoding the whole takes off."""
        ...

    def to_bytes(self, piece: str, *, added: bool = False) -> bytes:
        """The bytes that ``piece`` adds to a text; an ``added`` one was put in as a whole."""
        ...


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the rest counts up from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update((chr(0x100 + index), byte) for index, byte in enumerate(others))
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


@frozen
class ByteLevel:
    """GPT-2's convention. Added pieces, and those outside its alphabet, stand for themselves."""

    strips_leading_space: bool = False

    def to_bytes(self, piece: str, *, added: bool = False) -> bytes:
        """The bytes of ``piece``."""
        if added:
            return piece.encode()
        try:
            return bytes(BYTE_ALPHABET[character] for character in piece)
        except KeyError:
            return piece.encode()


@frozen
class SentencePiece:
    """SentencePiece's convention, the same for added pieces."""

    strips_leading_space: bool
    byte_fallback: bool = True

    def to_bytes(self, piece: str, *, added: bool = False) -> bytes:
        """The bytes of ``piece``."""
        if self.byte_fallback and (match := BYTE_PIECE.fullmatch(piece)):
            return bytes([int(match[1], 16)])
        return piece.replace(SPACE, " ").encode()


def from_decoder(decoder_json: str | bytes | None) -> PieceBytes | None:
    """The convention that a tokenizer.json's ``decoder`` describes.

    None for the others (WordPiece, CLIP's word endings): their text depends on neighbouring
    tokens, and no generating model uses them.
    """
    if decoder_json is None:
        return None
    decoder = json.loads(decoder_json)
    steps = {step["type"]: step for step in decoder.get("decoders", [decoder])}
    match steps:
        case {"ByteLevel": _} if len(steps) == 1:
            return ByteLevel()
        case {"Metaspace": metaspace} if steps.keys() <= {"Metaspace", "ByteFallback", "Fuse"}:
            return SentencePiece(_prepends(metaspace), "ByteFallback" in steps)
        case {"Replace": {"pattern": {"String": "▁"}, "content": " "}} if steps.keys() <= {
            "Replace",
            "ByteFallback",
            "Fuse",
            "Strip",
        }:
            return SentencePiece("Strip" in steps, "ByteFallback" in steps)
    return None


def _prepends(metaspace: Mapping[str, object]) -> bool:
    return metaspace.get("prepend_scheme", "always") != "never"
