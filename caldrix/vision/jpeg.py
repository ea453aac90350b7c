"""JPEG files: size and orientation from their segments, and the segments that pixels depend on.

After ITU T.81, annex B. Application data other than JFIF's and Adobe's (which tells how colours are
kept) is left out of what is decoded, and so is all that follows the picture's end: the further
pictures of a multi-picture file, or a film.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

from caldrix.vision.errors import InvalidImage
from caldrix.vision.exif import PREFIX, read_orientation
from caldrix.vision.header import (
    MAX_PIECES,
    UPRIGHT,
    ImageFile,
    check_sides,
    damaged,
    too_many_pieces,
)

JPEG_SIGNATURE = b"\xff\xd8\xff"
MAX_SCANS = 100
"""A progressive file's passes over all of its pixels; encoders write some ten."""

_START, _END, _SCAN = 0xD8, 0xD9, 0xDA
_ALONE = frozenset({0x00, 0x01, _START, *range(0xD0, 0xD8)})
"""Markers that no segment follows; 0 is a byte that was stuffed."""
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
"""Within and between scans: not a stuffed byte, nor what restarts the decoding of a scan."""
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_APP0, _EXIF, _ADOBE, _COMMENT = 0xE0, 0xE1, 0xEE, 0xFE
_LEFT_OUT = frozenset({*range(0xE0, 0xF0), _COMMENT}) - {_APP0, _ADOBE}


def read_jpeg(data: bytes) -> ImageFile:
    """The file's size, orientation and pixels. Raises InvalidImage."""
    size: tuple[int, int] | None = None
    orientation: int | None = None
    kept = [data[:2]]
    for marker, start, end in _segments(data):
        segment = data[start:end]
        if marker in _FRAMES:
            if size is not None:
                raise damaged("it has two frame headers")
            size = _size(segment)
        if marker == _EXIF and orientation is None and segment[4:].startswith(PREFIX):
            orientation = read_orientation(segment[4:])
        if marker == _SCAN:
            break
        if marker not in _LEFT_OUT:
            kept.append(segment)
    if size is None:
        raise damaged("its pixels come before their size")
    kept.append(data[start : _end(data, start)])
    return ImageFile(*size, UPRIGHT if orientation is None else orientation, b"".join(kept))


def _segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The marker, start and end of each segment, up to the first scan's header."""
    position = 2
    for _ in range(MAX_PIECES):
        # Decoders pass over what is no marker, and a marker may have several 0xff before it.
        position = data.find(b"\xff", position)
        while position >= 0 and data[position + 1 : position + 2] == b"\xff":
            position += 1
        if position < 0 or position + 2 > len(data):
            raise damaged("it ends early")
        marker = data[position + 1]
        if marker in _ALONE:
            position += 2
            continue
        if marker == _END:
            raise damaged("it ends before its pixels")
        length_bytes = data[position + 2 : position + 4]
        end = position + 2 + int.from_bytes(length_bytes)
        if len(length_bytes) < 2 or end > len(data):
            raise damaged("it ends early")
        if end < position + 4:
            raise damaged("a segment's length is wrong")
        yield marker, position, end
        position = end
    raise too_many_pieces("segments")


def _end(data: bytes, position: int) -> int:
    """Where the picture ends whose first scan is at ``position``; the file's end if it is cut."""
    scans = 0
    for _ in range(MAX_PIECES):
        found = _MARKER.search(data, position)
        if found is None:
            return len(data)
        marker, position = data[found.end() - 1], found.end()
        if marker == _END:
            return position
        if marker not in _ALONE:
            position += int.from_bytes(data[position : position + 2])
        scans += marker == _SCAN
        if scans > MAX_SCANS:
            raise InvalidImage(f"the image has more than {MAX_SCANS} scans; save it with fewer")
    raise too_many_pieces("segments")


def _size(frame: bytes) -> tuple[int, int]:
    """Width and height: behind marker, length and precision, the height comes first."""
    if len(frame) < 9:
        raise damaged("its frame header has a wrong length")
    height, width = struct.unpack_from(">HH", frame, 5)
    check_sides(width, height)
    return width, height
