"""The orientation of an image, from its EXIF data.

The layout is TIFF 6.0's: a byte order, then a directory of entries of 12 bytes. Only the first
directory's tag 0x0112 is read. Data that cannot be read says nothing, as in any viewer: the image
stays as it is stored.
"""

from __future__ import annotations

import struct

from caldrix.vision.header import UPRIGHT

PREFIX = b"Exif\0\0"
_ORIENTATION = 0x0112
_ENTRY_BYTES = 12
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}


def read_orientation(exif: bytes) -> int:
    """The orientation, 1 to 8, that EXIF data gives; 1, upright, if it gives none."""
    tiff = exif.removeprefix(PREFIX)
    order = _BYTE_ORDERS.get(tiff[:4])
    if order is None:
        return UPRIGHT
    try:
        return _find(tiff, order)
    except struct.error:
        return UPRIGHT


def _find(tiff: bytes, order: str) -> int:
    (directory,) = struct.unpack_from(f"{order}I", tiff, 4)
    (count,) = struct.unpack_from(f"{order}H", tiff, directory)
    for index in range(count):
        entry = directory + 2 + index * _ENTRY_BYTES
        # Of the type and the count, always one short integer, nothing is asked.
        tag, value = struct.unpack_from(f"{order}H6xH", tiff, entry)
        if tag == _ORIENTATION and 1 <= value <= 8:
            return int(value)
    return UPRIGHT
