"""PNG files: size and orientation from their chunks, and the chunks that pixels depend on.

After the W3C's PNG specification (third edition). Everything else is left out of what is decoded:
text, profiles and animation are no part of the picture, and what they unpack to has no bound. An
animated PNG is thereby its default image.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

from caldrix.vision.errors import InvalidImage
from caldrix.vision.exif import read_orientation
from caldrix.vision.header import (
    MAX_PIECES,
    UPRIGHT,
    ImageFile,
    check_sides,
    damaged,
    too_many_pieces,
)

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_HEADER, _PALETTE, _TRANSPARENCY, _PIXELS, _EXIF = b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"eXIf"
_END = b"IEND"
_KEPT = frozenset({_HEADER, _PALETTE, _TRANSPARENCY, _PIXELS})
_READ = _KEPT | {_EXIF}
_HEADER_BYTES = 13
_FRAME_BYTES = 12
_GREY, _RGB = 0, 2


def read_png(data: bytes) -> ImageFile:
    """The file's size, orientation and pixels. Raises InvalidImage."""
    found: dict[bytes, bytes] = {}
    pixels: list[bytes] = []
    for name, payload in _chunks(data):
        if not found and name != _HEADER:
            raise damaged("its first chunk is not the header")
        if name == _PIXELS:
            pixels.append(payload)
        elif name in found:
            raise damaged(f"it has the chunk {name.decode()} twice")
        else:
            found[name] = payload
            if name == _HEADER:
                width, height = _size(payload)
    if not pixels:
        raise damaged("it has no pixels")
    if _TRANSPARENCY in found:
        found[_TRANSPARENCY] = _transparency(found[_HEADER], found[_TRANSPARENCY])
    exif = found.pop(_EXIF, None)
    found[_PIXELS] = b"".join(pixels)
    found[_END] = b""
    return ImageFile(
        width,
        height,
        UPRIGHT if exif is None else read_orientation(exif),
        PNG_SIGNATURE + b"".join(_chunk(name, payload) for name, payload in found.items()),
    )


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks that are read, up to the end chunk, each with a right checksum."""
    position = len(PNG_SIGNATURE)
    for _ in range(MAX_PIECES):
        if position + _FRAME_BYTES > len(data):
            raise damaged("it ends early")
        length, name = struct.unpack_from(">I4s", data, position)
        end = position + _FRAME_BYTES + length
        if end > len(data):
            raise damaged("it ends early")
        if name == _END:
            return
        if name in _READ:
            payload = data[position + 8 : end - 4]
            if _checksum(name, payload) != data[end - 4 : end]:
                raise damaged(f"the checksum of its chunk {name.decode()} is wrong")
            yield name, payload
        elif _is_critical(name):
            raise damaged("it has a chunk that the PNG standard does not know")
        position = end
    raise too_many_pieces("chunks")


def _is_critical(name: bytes) -> bool:
    """Whether a decoder must know the chunk: bit 5 of the name's first byte (section 5.4)."""
    return not name[0] & 0x20


def _size(header: bytes) -> tuple[int, int]:
    if len(header) != _HEADER_BYTES:
        raise damaged("its header has a wrong length")
    width, height = struct.unpack_from(">II", header)
    check_sides(width, height)
    return width, height


def _transparency(header: bytes, payload: bytes) -> bytes:
    """The transparent colour as the decoder compares it: with samples widened to 8 bits."""
    depth, colour_type = header[8], header[9]
    if colour_type == _RGB and depth == 16:
        raise InvalidImage(
            "the image names one of its 16-bit colours transparent, which is not supported; save"
            " it with an alpha channel or with 8 bits"
        )
    if colour_type == _GREY and depth in (2, 4) and len(payload) == 2:
        (grey,) = struct.unpack(">H", payload)
        most = 2**depth - 1
        return struct.pack(">H", (grey & most) * (255 // most))
    return payload


def _chunk(name: bytes, payload: bytes) -> bytes:
    return b"".join((struct.pack(">I", len(payload)), name, payload, _checksum(name, payload)))


def _checksum(name: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(payload, zlib.crc32(name)))
