"""Bytes to text, as they come: a character leaves once its last byte has arrived.

The standard library's incremental decoder is the machine. It holds at most the three bytes of an
unfinished character, and its output joined equals ``bytes.decode("utf-8", "replace")`` of the
whole, however the bytes were cut.
"""

from __future__ import annotations

from codecs import getincrementaldecoder

_Utf8Decoder = getincrementaldecoder("utf-8")


class Utf8Assembler:
    """Assembles UTF-8 text from bytes cut anywhere; invalid bytes become U+FFFD."""

    def __init__(self) -> None:
        self._decoder = _Utf8Decoder(errors="replace")

    def push(self, data: bytes) -> str:
        """Take ``data``; return the characters that are complete now, maybe none."""
        return self._decoder.decode(data)

    def flush(self) -> str:
        """End the text: an unfinished character becomes U+FFFD. Ready for a new text after."""
        tail = self._decoder.decode(b"", True)
        self._decoder.reset()
        return tail
