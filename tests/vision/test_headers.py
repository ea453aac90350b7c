"""Sizes and orientations are read from headers, in each type and before any pixel."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from caldrix.vision.errors import InvalidImage
from caldrix.vision.exif import read_orientation
from caldrix.vision.jpeg import read_jpeg
from tests.support.image_files import chunk, exif, png, saved, sent

Make = Callable[[int, int], bytes]
NO_PIXELS = b""


def _jpeg_of(width: int, height: int) -> bytes:
    data = saved(Image.new("RGB", (8, 8)), "JPEG")
    start = data.index(b"\xff\xc0") + 5
    return data[:start] + struct.pack(">HH", height, width) + data[start + 4 :]


def _webp(first: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + len(first)) + b"WEBP" + first


def _extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return _webp(b"VP8X" + struct.pack("<II", 10, 0) + sides)


def _lossy(width: int, height: int) -> bytes:
    frame = bytes(3) + b"\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return _webp(b"VP8 " + struct.pack("<I", len(frame)) + frame)


def _lossless(width: int, height: int) -> bytes:
    return _webp(b"VP8L" + struct.pack("<IBI", 5, 0x2F, (height - 1) << 14 | (width - 1)))


SIZED: list[tuple[str, Make]] = [
    ("image/png", lambda width, height: png(NO_PIXELS, width, height)),
    ("image/jpeg", _jpeg_of),
    ("image/webp", _extended),
    ("image/webp", _lossy),
    ("image/webp", _lossless),
]


@pytest.mark.parametrize(("media_type", "make"), SIZED)
def test_size(media_type: str, make: Make) -> None:
    file = sent(make(4096, 3), media_type).file
    assert (file.width, file.height) == (4096, 3)


@pytest.mark.parametrize(("media_type", "make"), SIZED)
@pytest.mark.parametrize("size", [(4097, 8), (8, 4097)])
def test_side_too_long(media_type: str, make: Make, size: tuple[int, int]) -> None:
    with pytest.raises(InvalidImage, match="may have at most 4096"):
        sent(make(*size), media_type)


@pytest.mark.parametrize(
    "data", [png(NO_PIXELS, 2**31 - 1, 2**31 - 1), png(NO_PIXELS, 2**32 - 1, 1)]
)
def test_sides_beyond_any_memory(data: bytes) -> None:
    with pytest.raises(InvalidImage, match="may have at most 4096"):
        sent(data)


@pytest.mark.parametrize(
    ("media_type", "data"),
    [("image/png", png(NO_PIXELS, 0, 8)), ("image/jpeg", _jpeg_of(8, 0))],
)
def test_no_side(media_type: str, data: bytes) -> None:
    with pytest.raises(InvalidImage, match="has no pixels"):
        sent(data, media_type)


@pytest.mark.parametrize("order", ["<", ">"])
def test_orientation(order: str) -> None:
    assert [read_orientation(exif(value, order)) for value in range(10)] == [
        *(1, 1, 2, 3, 4, 5, 6, 7, 8, 1)
    ]


@pytest.mark.parametrize(
    "data", [b"", b"Exif\0\0", b"II*\0", exif(6)[:-8], b"II*\0" + b"\xff" * 20, b"XX" + exif(6)[2:]]
)
def test_exif_that_says_nothing(data: bytes) -> None:
    assert read_orientation(data) == 1


def test_orientation_of_each_type() -> None:
    picture, spelled = Image.new("RGB", (6, 4)), b"Exif\0\0" + exif(6)
    images = [
        *(
            sent(saved(picture, kind, exif=spelled), f"image/{kind.lower()}")
            for kind in ("PNG", "JPEG", "WEBP")
        ),
        # Behind a chunk of an odd length, and behind the pixels.
        sent(saved(picture, "WEBP", exif=spelled, icc_profile=b"odd"), "image/webp"),
        sent(png((b"\0" + bytes(18)) * 4, 6, 4, after=chunk(b"eXIf", exif(6)))),
    ]
    for image in images:
        assert image.file.orientation == 6
        assert (image.file.width, image.file.height) == (4, 6)


def test_what_pixels_do_not_depend_on_never_reaches_a_decoder() -> None:
    """Profiles and texts that would unpack to a gibibyte, an animation, data of applications."""
    bomb = zlib.compress(bytes(1 << 20))
    rows = b"\0\x11\x22\x33"
    odd = (
        chunk(b"iCCP", b"x\0\0" + bomb)
        + chunk(b"zTXt", b"x\0\0" + bomb)
        + chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))
    )
    assert sent(png(rows, 1, 1, before=odd, after=odd)).file.data == png(rows, 1, 1)
    plain = saved(Image.new("RGB", (8, 8)), "JPEG")
    profile = saved(Image.new("RGB", (8, 8)), "JPEG", icc_profile=bytes(200_000), comment=b"x")
    assert len(profile) > 200_000
    assert sent(profile, "image/jpeg").file.data == plain


def _chunks(count: int) -> bytes:
    return png(NO_PIXELS, 1, 1, before=chunk(b"teXt", b"") * count)


@pytest.mark.parametrize(
    ("media_type", "data", "words"),
    [
        ("image/png", b"\x89PNG\r\n\x1a\n", "ends early"),
        ("image/png", png(NO_PIXELS, 1, 1)[:-12], "ends early"),
        ("image/png", png(NO_PIXELS, 1, 1)[:-30], "ends early"),
        ("image/png", b"\x89PNG\r\n\x1a\n" + chunk(b"PLTE", b""), "first chunk is not the header"),
        ("image/png", b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b""), "header has a wrong length"),
        ("image/png", b"\x89PNG\r\n\x1a\n" + chunk(b"CgBI", b""), "does not know"),
        ("image/png", png(NO_PIXELS, 1, 1).replace(b"IHDR\0", b"IHDR\1", 1), "checksum"),
        ("image/png", png(NO_PIXELS, 1, 1, before=chunk(b"PLTE", b"123") * 2), "PLTE twice"),
        ("image/png", _chunks(65536), "more than 65536 chunks"),
        ("image/png", png(b"", 1, 1, depth=16, before=chunk(b"tRNS", bytes(6))), "transparent"),
        ("image/jpeg", b"\xff\xd8\xff", "ends early"),
        ("image/jpeg", b"\xff\xd8\xff\xd9", "ends before its pixels"),
        ("image/jpeg", b"\xff\xd8\xff\xda\0\2", "come before their size"),
        ("image/jpeg", b"\xff\xd8\xff\xe1\0\1", "length is wrong"),
        ("image/jpeg", b"\xff\xd8" + b"\xff\xe1\0\2" * 65537, "more than 65536 segments"),
        ("image/jpeg", _jpeg_of(8, 8)[:-2] + b"\xff\xda\0\2" * 100, "more than 100 scans"),
        ("image/webp", b"RIFF\4\0\0\0WEBP", "ends early"),
        ("image/webp", b"RIFF\xff\0\0\0WEBP", "ends early"),
        ("image/webp", _webp(b"VP8 " + bytes(20)), "no start code"),
        ("image/webp", _webp(b"VP8L" + bytes(20)), "no signature"),
        ("image/webp", _webp(b"EXIF" + bytes(20)), "does not begin with a picture"),
    ],
)
def test_damaged(media_type: str, data: bytes, words: str) -> None:
    with pytest.raises(InvalidImage, match=words):
        sent(data, media_type)


def test_what_follows_a_jpegs_end_is_left_out() -> None:
    """As of a photo with a film behind it, whatever its bytes happen to be."""
    photo = _jpeg_of(8, 8)
    film = np.random.default_rng(0).integers(0, 256, 2_000_000, np.uint8).tobytes()
    assert film.count(b"\xff\xda") > 10
    alone, followed = (read_jpeg(data) for data in (photo, photo + film + photo))
    assert followed == alone
    assert followed.data.endswith(b"\xff\xd9")
