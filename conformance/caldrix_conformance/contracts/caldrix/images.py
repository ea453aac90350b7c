"""Pictures for requests: PNGs of any size made here, small constants of the other types.

PNG after the W3C recommendation (third edition), sections 5 and 11; the sizes in the headers of
JPEG and WebP after ITU T.81, B.2.2, and the WebP lossless bitstream specification, section 3.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence

from attrs import evolve, frozen

from caldrix_conformance.answers import JsonObject
from caldrix_conformance.target import ABSENT

Colour = tuple[int, int, int]

RED: Colour = (220, 20, 20)
BLUE: Colour = (20, 20, 220)

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6


@frozen
class Picture:
    """The bytes of an image file, and the subtype of image/ that they are sent as."""

    subtype: str
    data: bytes

    @property
    def url(self) -> str:
        """The data URL."""
        return f"data:image/{self.subtype};base64,{b64encode(self.data).decode()}"

    def named(self, subtype: str) -> Picture:
        """The same bytes, said to be of another type."""
        return evolve(self, subtype=subtype)

    def part(self, detail: object = "low") -> JsonObject:
        """The content part that shows it; a detail of ABSENT is left out."""
        return image_part(self.url, detail)


def image_part(url: object, detail: object = "low") -> JsonObject:
    """A content part for any ``url``; a detail of ABSENT is left out."""
    image_url = {"url": url} if detail is ABSENT else {"url": url, "detail": detail}
    return {"type": "image_url", "image_url": image_url}


def png(width: int, height: int, colour: Colour = RED, *, padding: int = 0) -> Picture:
    """A PNG of one colour, with ``padding`` bytes in a private chunk that decoders pass over."""
    row = b"\0" + bytes(colour) * width
    ignored = _chunk(b"pdDg", bytes(padding)) if padding else b""
    return _png(width, height, 8, _RGB, row * height, before=ignored)


def png_of_bytes(size: int) -> Picture:
    """A small PNG whose file has ``size`` bytes, at least some hundred."""
    chunk_frame = 12
    return png(8, 8, padding=size - len(png(8, 8).data) - chunk_frame)


def png_kinds() -> Sequence[tuple[str, Picture]]:
    """A PNG of each way to keep a pixel that photographs and drawings come in, with its name."""
    palette = _chunk(b"PLTE", bytes(RED) + bytes(BLUE))
    return [
        ("grey", _png(8, 8, 8, _GREY, (b"\0" + b"\x80" * 8) * 8)),
        ("grey and alpha", _png(8, 8, 8, _GREY_ALPHA, (b"\0" + b"\x80\xff" * 8) * 8)),
        ("alpha", _png(8, 8, 8, _RGBA, (b"\0" + bytes((*RED, 255)) * 8) * 8)),
        ("palette", _png(8, 8, 1, _PALETTE, b"\0\x0f" * 8, before=palette)),
        ("16 bits", _png(8, 8, 16, _RGB, (b"\0" + b"\x80\x00" * 24) * 8)),
    ]


def broken_png(width: int, height: int) -> Picture:
    """A PNG whose header is right and whose pixels can't be had."""
    pixels = _chunk(b"IDAT", b"no zlib stream")
    header = _header(width, height, 8, _RGB)
    return Picture("png", PNG_SIGNATURE + header + pixels + _chunk(b"IEND", b""))


def jpeg_of_size(width: int, height: int) -> Picture:
    """The small JPEG with another size in its header, too large for its data."""
    # The frame header: marker, length, precision, then the two sides, each of 16 bits.
    start = JPEG.data.index(b"\xff\xc0") + 5
    sides = struct.pack(">HH", height, width)
    return Picture("jpeg", JPEG.data[:start] + sides + JPEG.data[start + 4 :])


def webp_of_size(width: int, height: int) -> Picture:
    """The small WebP with another size in its header, too large for its data."""
    # Behind RIFF, WEBP, VP8L and the byte 0x2f: 14 bits for each side less one, then flags.
    start = WEBP.data.index(b"VP8L") + 9
    (old,) = struct.unpack_from("<I", WEBP.data, start)
    bits = (old >> 28 << 28) | (height - 1) << 14 | (width - 1)
    return Picture("webp", WEBP.data[:start] + struct.pack("<I", bits) + WEBP.data[start + 4 :])


def _png(
    width: int, height: int, depth: int, colour_type: int, rows: bytes, *, before: bytes = b""
) -> Picture:
    """A PNG of ``rows``, each with its filter byte, and other chunks ``before`` its pixels."""
    pixels = _chunk(b"IDAT", zlib.compress(rows))
    header = _header(width, height, depth, colour_type)
    return Picture("png", PNG_SIGNATURE + header + before + pixels + _chunk(b"IEND", b""))


def _header(width: int, height: int, depth: int, colour_type: int) -> bytes:
    return _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0))


def _chunk(name: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(name + data)
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum)


PIXEL = png(1, 1)
"""The smallest picture."""

JPEG = Picture(
    "jpeg",
    b64decode(
        "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDABsSFBcUERsXFhceHBsgKEIrKCUlKFE6PTBCYFVlZF9VXVtqeJmBanGQ"
        "c1tdhbWGkJ6jq62rZ4C8ybqmx5moq6T/2wBDARweHigjKE4rK06kbl1upKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSk"
        "pKSkpKSkpKSkpKSkpKSkpKSkpKSkpKSkpKT/wAARCAAIAAgDASIAAhEBAxEB/8QAFQABAQAAAAAAAAAAAAAAAAAA"
        "AAX/xAAWEAEBAQAAAAAAAAAAAAAAAAAAA0L/xAAVAQEBAAAAAAAAAAAAAAAAAAAABf/EABkRAAIDAQAAAAAAAAAA"
        "AAAAAAABBDNB8P/aAAwDAQACEQMRAD8AmR0ASrX2FGPUj//Z"
    ),
)
"""A baseline JPEG of 8 by 8 pixels, half of it blue and half red."""

WEBP = Picture("webp", b64decode("UklGRiIAAABXRUJQVlA4TBUAAAAvB8ABAA8wHvdQvRXy/EcLCh/R/wAA"))
"""The same picture as a lossless WebP."""

WEBP_LOSSY = Picture(
    "webp",
    b64decode(
        "UklGRkQAAABXRUJQVlA4IDgAAAAQAgCdASoIAAgABABoJagCdHIAq//cAAXAAP7sP9LXsu7Kt0wxXTdLhCcp3asK"
        "r/+lbmg2KPMQAA=="
    ),
)
"""The same picture as a lossy WebP."""

GIF = Picture(
    "gif",
    b64decode(
        "R0lGODdhCAAIAIEAAMgeHh4eyAAAAAAAACwAAAAACAAIAAAIGwADCAwAoCCAgQQNIjR4cCDDhQodRhT4UGLBgAA7"
    ),
)
"""The same picture as a GIF."""
