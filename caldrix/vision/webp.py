"""WebP files: size and orientation from their chunks.

After the WebP container specification and RFC 9649. The file is decoded as it is: its decoder
unpacks nothing but pictures, and of an animation only the first.
"""

from __future__ import annotations

import re
import struct

from caldrix.vision.exif import read_orientation
from caldrix.vision.header import (
    MAX_PIECES,
    UPRIGHT,
    ImageFile,
    check_sides,
    damaged,
    too_many_pieces,
)

WEBP_SIGNATURE = re.compile(rb"RIFF.{4}WEBP", re.DOTALL)

_FIRST_CHUNK = 12
_EXIF_FLAG = 0x08


def read_webp(data: bytes) -> ImageFile:
    """The file's size, orientation and pixels. Raises InvalidImage."""
    (length,) = struct.unpack_from("<I", data, 4)
    if length + 8 > len(data):
        raise damaged("it ends early")
    try:
        width, height = _size(data)
    except struct.error:
        raise damaged("it ends early") from None
    check_sides(width, height)
    extended = data[_FIRST_CHUNK : _FIRST_CHUNK + 4] == b"VP8X"
    has_exif = extended and data[_FIRST_CHUNK + 8] & _EXIF_FLAG
    return ImageFile(width, height, _orientation(data) if has_exif else UPRIGHT, data)


def _size(data: bytes) -> tuple[int, int]:
    """Width and height of the canvas, from the first chunk. Raises struct.error if it is cut."""
    name, _ = struct.unpack_from("<4sI", data, _FIRST_CHUNK)
    start = _FIRST_CHUNK + 8
    match name:
        case b"VP8 ":
            # Three bytes of frame tag, three of start code; the upper two bits of a side scale it.
            code, width, height = struct.unpack_from("<3sHH", data, start + 3)
            if code != b"\x9d\x01\x2a":
                raise damaged("its picture has no start code")
            return width & 0x3FFF, height & 0x3FFF
        case b"VP8L":
            signature, bits = struct.unpack_from("<BI", data, start)
            if signature != 0x2F:
                raise damaged("its picture has no signature")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8X":
            low_width, high_width, low_height, high_height = struct.unpack_from(
                "<HBHB", data, start + 4
            )
            return (high_width << 16 | low_width) + 1, (high_height << 16 | low_height) + 1
    raise damaged("it does not begin with a picture")


def _orientation(data: bytes) -> int:
    position = _FIRST_CHUNK
    for _ in range(MAX_PIECES):
        if position + 8 > len(data):
            return UPRIGHT
        name, length = struct.unpack_from("<4sI", data, position)
        if name == b"EXIF":
            return read_orientation(data[position + 8 : position + 8 + length])
        # Chunks begin at even places.
        position += 8 + length + length % 2
    raise too_many_pieces("chunks")
