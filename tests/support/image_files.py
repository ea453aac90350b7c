"""Image files for tests of vision, whole or odd, and how they are sent."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from io import BytesIO

from PIL import Image

from caldrix.vision.parts import EncodedImage, read_image


def chunk(name: bytes, payload: bytes) -> bytes:
    """A PNG chunk."""
    checksum = zlib.crc32(name + payload)
    return struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", checksum)


def png(
    rows: bytes,
    width: int,
    height: int,
    *,
    depth: int = 8,
    colour: int = 2,
    before: bytes = b"",
    after: bytes = b"",
) -> bytes:
    """A PNG of raw rows, each with its filter byte, with chunks before and after its pixels."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(rows))
    return b"".join(
        (b"\x89PNG\r\n\x1a\n", chunk(b"IHDR", header), before, pixels, after, chunk(b"IEND", b""))
    )


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    """A file of Pillow's."""
    buffer = BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int, order: str = "<") -> bytes:
    """EXIF data that says an orientation and nothing else."""
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)


def url(data: bytes, media_type: str = "image/png") -> str:
    """A data URL."""
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def sent(data: bytes, media_type: str = "image/png", detail: str = "high") -> EncodedImage:
    """The image as a request has it."""
    return read_image({"url": url(data, media_type), "detail": detail})
