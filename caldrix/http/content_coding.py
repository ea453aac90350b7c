"""Compressed request bodies: which content codings are taken, and how far one is decoded.

Decoding ends where a body is larger than its route takes, so that a small bomb stays small, and
every other way to be wrong is a 400 in a sentence. gzip is RFC 1952, zstd is RFC 8878, its window
in HTTP is bounded by RFC 9659, and the names are those of RFC 9110, 8.4.1.
"""

from __future__ import annotations

import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from attrs import frozen

from caldrix.http.body import shorten
from caldrix.http.config import MEBIBYTE
from caldrix.http.errors import ApiError, body_too_large

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MOST_PARTS = 256
"""Members or frames of a body: each costs time, also an empty one; a compressor makes one."""
MOST_WINDOW = 8 * MEBIBYTE
"""Of zstd, in bytes: what a decoder of HTTP should hold and no more (RFC 9659, 3)."""

_PIECE = 65536
"""Bytes given to a decompressor at a time: what follows a part is copied once for each part."""
_GZIP_ONLY = 16 + zlib.MAX_WBITS
_ZSTD_FRAME = b"\x28\xb5\x2f\xfd"
_ZSTD_HEADER = 18
"""Bytes of the longest one."""


class Decompressor(Protocol):
    """What reads one part of a body, as zlib and zstd have it."""

    @property
    def eof(self) -> bool:
        """Whether the part's end has come."""

    @property
    def unused_data(self) -> bytes:
        """What came after its end."""

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        """The next bytes, ``max_length`` at most, which is above 0."""


@frozen
class ContentCoding:
    """A way to compress a body: one or more parts, each decoded by itself."""

    name: str
    parts: str
    """What its parts are called."""
    beginning: re.Pattern[bytes]
    """Of each part."""
    decompressor: Callable[[], Decompressor]
    error: type[Exception]
    """What the decompressor raises of damage."""
    check: Callable[[memoryview, int, int], None]
    """Refuses a part by its header, given the bytes that there is room for, and the most of all."""

    def decode(self, body: bytes, most: int) -> bytes:
        """The body as it was before it was compressed.

        Raises ApiError: a 413 once more than ``most`` bytes have come of it, a 400 where it is not
        whole, is damaged, or has anything after its end.
        """
        decoded: list[bytes] = []
        room, rest = most, memoryview(body)
        while rest or not decoded:
            if self.beginning.match(rest) is None:
                raise self._unlike(has_ended=bool(decoded))
            if len(decoded) == MOST_PARTS:
                raise ApiError(
                    400,
                    f"the request body has more than {MOST_PARTS} {self.name} {self.parts}; "
                    "compress it as one",
                )
            self.check(rest, room, most)
            part, rest = self._first_part(rest, room, most)
            decoded.append(part)
            room -= len(part)
        return b"".join(decoded)

    def _first_part(self, rest: memoryview, room: int, most: int) -> tuple[bytes, memoryview]:
        """What the first part of ``rest`` decodes to, and what follows it."""
        decompressor = self.decompressor()
        decoded: list[bytes] = []
        for start in range(0, len(rest), _PIECE):
            piece = rest[start : start + _PIECE]
            try:
                # One byte more than there is room for tells that there is more.
                decoded.append(decompressor.decompress(piece, room + 1))
            except self.error:
                raise ApiError(
                    400, f"the request body is damaged: its {self.name} can't be decoded"
                ) from None
            room -= len(decoded[-1])
            if room < 0:
                raise body_too_large(most)
            if decompressor.eof:
                end = start + len(piece) - len(decompressor.unused_data)
                return b"".join(decoded), rest[end:]
        raise ApiError(400, f"the request body breaks off before its {self.name} ends")

    def _unlike(self, *, has_ended: bool) -> ApiError:
        if has_ended:
            return ApiError(400, f"the request body goes on after its {self.name} has ended")
        return ApiError(
            400, f"the request body is not {self.name}, though its Content-Encoding says so"
        )


def _check_zstd(frame: memoryview, room: int, most: int) -> None:
    """Refuses what a header asks for, before any of it is made."""
    header = bytes(frame[:_ZSTD_HEADER])
    if not header.startswith(_ZSTD_FRAME):
        return  # a skippable frame, of which nothing is kept
    try:
        info = zstd.get_frame_info(header)
    except zstd.ZstdError:
        return  # cut or damaged: decoding tells which
    # None where the header does not tell, whatever its annotation says.
    content = info.decompressed_size or 0
    if content > room:
        raise body_too_large(most)
    if info.dictionary_id:
        raise ApiError(400, "the request body's zstd needs a dictionary; compress it without one")
    window = _zstd_window(header, content)
    if window > MOST_WINDOW:
        raise ApiError(
            400,
            f"the request body's zstd has a window of {window / MEBIBYTE:g} MiB; "
            f"compress it with one of {MOST_WINDOW // MEBIBYTE} MiB at most",
        )


def _zstd_window(header: bytes, content: int) -> int:
    """Bytes of the window that a frame's header asks for: its own, or all of its ``content``.

    RFC 8878, 3.1.1.1.
    """
    descriptor, window = header[len(_ZSTD_FRAME) :][:2]
    if descriptor & 0b0010_0000:
        return content
    base = 1 << (10 + (window >> 3))
    return base + base // 8 * (window & 0b111)


def _zstd_decompressor() -> Decompressor:
    most = MOST_WINDOW.bit_length() - 1
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: most})


GZIP = ContentCoding(
    name="gzip",
    parts="members",
    beginning=re.compile(rb"\x1f\x8b"),
    decompressor=lambda: zlib.decompressobj(_GZIP_ONLY),
    error=zlib.error,
    check=lambda *_: None,
)
ZSTD = ContentCoding(
    name="zstd",
    parts="frames",
    beginning=re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
    decompressor=_zstd_decompressor,
    error=zstd.ZstdError,
    check=_check_zstd,
)

_CODINGS: Mapping[str, ContentCoding | None] = {
    "": None,
    "identity": None,
    "gzip": GZIP,
    "x-gzip": GZIP,
    "zstd": ZSTD,
}


def content_coding(headers: Sequence[str]) -> ContentCoding | None:
    """What the values of a request's Content-Encoding ask for; None for a body as it is.

    Raises ApiError, a 400, for a coding that is not taken, and for several.
    """
    names = ", ".join(headers)
    try:
        return _CODINGS[names.strip().lower()]
    except KeyError:
        raise ApiError(
            400,
            f"Content-Encoding {shorten(names)} is not taken; "
            "send plain JSON, or compress it once, with gzip or zstd",
        ) from None
