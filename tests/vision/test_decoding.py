"""Pixels: every way to keep them is right, and every damage is refused by a typed error."""

from __future__ import annotations

import struct
import threading
from contextlib import suppress
from io import BytesIO

import numpy as np
import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile

from caldrix.vision.decoding import decode
from caldrix.vision.errors import InvalidImage
from tests.support.image_files import chunk, exif, png, saved, sent

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
WHITE = (255, 255, 255)


def pixels(data: bytes, media_type: str = "image/png") -> list[list[tuple[int, ...]]]:
    """The decoded rows."""
    image = decode(sent(data, media_type))
    assert image.mode == "RGB"
    return [[tuple(pixel) for pixel in row] for row in np.asarray(image).tolist()]


def _row(values: bytes) -> bytes:
    return b"\0" + values


@pytest.mark.parametrize(
    ("width", "depth", "colour", "row", "before", "seen"),
    [
        (2, 1, GREY, b"\x40", b"", [(0, 0, 0), WHITE]),
        (2, 1, GREY, b"\x40", chunk(b"tRNS", b"\0\0"), [WHITE, WHITE]),
        (2, 4, GREY, b"\x5f", b"", [(85, 85, 85), WHITE]),
        (2, 4, GREY, b"\x5f", chunk(b"tRNS", b"\0\x05"), [WHITE, WHITE]),
        (2, 2, GREY, b"\x60", chunk(b"tRNS", b"\xff\xfd"), [WHITE, (170, 170, 170)]),
        (2, 8, GREY, b"\x50\x60", chunk(b"tRNS", b"\0\x50"), [WHITE, (96, 96, 96)]),
        (2, 16, GREY, b"\x12\xff\x80\x00", b"", [(18, 18, 18), (128, 128, 128)]),
        (2, 16, GREY, b"\x12\xff\x12\x00", chunk(b"tRNS", b"\x12\xff"), [WHITE, (18, 18, 18)]),
        (1, 16, RGB, b"\x12\xff\x80\x00\x01\x00", b"", [(18, 128, 1)]),
        (2, 8, RGB, b"\1\2\3\4\5\6", chunk(b"tRNS", b"\0\1\0\2\0\3"), [WHITE, (4, 5, 6)]),
        (2, 8, GREY_ALPHA, b"\x64\xff\x64\x00", b"", [(100, 100, 100), WHITE]),
        (1, 8, RGBA, b"\xff\x00\x00\x80", b"", [(255, 127, 127)]),
        (1, 16, RGBA, b"\xff\0\0\0\0\0\0\0", b"", [WHITE]),
        (2, 1, PALETTE, b"\x40", chunk(b"PLTE", b"\1\2\3\4\5\6"), [(1, 2, 3), (4, 5, 6)]),
        (
            *(2, 1, PALETTE, b"\x40"),
            chunk(b"PLTE", b"\1\2\3\4\5\6") + chunk(b"tRNS", b"\0"),
            [WHITE, (4, 5, 6)],
        ),
    ],
)
def test_png_kinds(  # the columns of the table
    width: int, depth: int, colour: int, row: bytes, before: bytes, seen: list[tuple[int, ...]]
) -> None:
    data = png(_row(row), width, 1, depth=depth, colour=colour, before=before)
    assert pixels(data) == [seen]


def test_transparency_of_many_rows() -> None:
    """More of them than are laid over white at a time."""
    levels = np.zeros((600, 2, 4), np.uint8)
    levels[:, 0] = (np.arange(600) % 200)[:, None]
    levels[:, 0, 3] = 255
    seen = np.asarray(decode(sent(saved(Image.fromarray(levels), "PNG"))))
    np.testing.assert_array_equal(seen[:, 0], levels[:, 0, :3])
    assert (seen[:, 1] == 255).all()


CORNERS = np.array([[[0, 0, 0], [80, 80, 80], [160, 160, 160]], [[250, 0, 0]] * 3], np.uint8)


@pytest.mark.parametrize(
    ("orientation", "upright"),
    [
        (1, CORNERS),
        (2, CORNERS[:, ::-1]),
        (3, CORNERS[::-1, ::-1]),
        (4, CORNERS[::-1]),
        (5, CORNERS.transpose(1, 0, 2)),
        (6, CORNERS[::-1].transpose(1, 0, 2)),
        (7, CORNERS[::-1, ::-1].transpose(1, 0, 2)),
        (8, CORNERS[:, ::-1].transpose(1, 0, 2)),
    ],
)
def test_orientation(orientation: int, upright: np.ndarray) -> None:
    image = sent(saved(Image.fromarray(CORNERS), "PNG", exif=exif(orientation)))
    seen = decode(image)
    np.testing.assert_array_equal(np.asarray(seen), upright)
    assert seen.size == (image.file.width, image.file.height)


def _near(data: bytes, media_type: str, colour: tuple[int, int, int]) -> None:
    seen = np.asarray(decode(sent(data, media_type)), np.int16)
    assert np.abs(seen - colour).max() <= 4


def _as_ycck(cmyk: bytes) -> bytes:
    """The same JPEG, said to be of the other of Adobe's two colour spaces of four channels."""
    start = cmyk.index(b"Adobe") + 11
    return cmyk[:start] + b"\2" + cmyk[start + 1 :]


def test_jpeg_kinds() -> None:
    red = Image.new("RGB", (16, 16), (200, 30, 40))
    _near(saved(red, "JPEG", quality=95), "image/jpeg", (200, 30, 40))
    _near(saved(red, "JPEG", quality=95, progressive=True), "image/jpg", (200, 30, 40))
    _near(saved(Image.new("L", (16, 16), 90), "JPEG", quality=95), "image/jpeg", (90, 90, 90))
    cmyk = saved(Image.new("CMYK", (16, 16), (0, 200, 100, 0)), "JPEG", quality=95)
    _near(cmyk, "image/jpeg", (255, 55, 155))
    # Stored are the complements, Y 127, Cb 128, Cr 178: inks of 197, 91 and 127 (ITU T.871).
    ycck = _as_ycck(saved(Image.new("CMYK", (16, 16), (128, 127, 77, 0)), "JPEG", quality=95))
    _near(ycck, "image/jpeg", (58, 164, 128))


def test_webp_kinds() -> None:
    clear = Image.new("RGBA", (9, 5), (200, 30, 40, 0))
    assert set(pixels(saved(clear, "WEBP", lossless=True), "image/webp")[0]) == {WHITE}
    red = Image.new("RGB", (16, 16), (200, 30, 40))
    _near(saved(red, "WEBP", quality=95), "image/webp", (200, 30, 40))


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_the_first_picture_of_an_animation(kind: str) -> None:
    frames = [Image.new("RGB", (7, 5), colour) for colour in ((9, 9, 9), (99, 9, 9))]
    data = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert pixels(data, f"image/{kind.lower()}") == [[(9, 9, 9)] * 7] * 5


def _picture(kind: str) -> bytes:
    levels = np.arange(40 * 30 * 3, dtype=np.uint32).reshape(30, 40, 3) * 97 >> 3
    return saved(Image.fromarray(levels.astype(np.uint8)), kind)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_cut_short(kind: str) -> None:
    data = _picture(kind)
    for size in range(12, len(data) - 2, 7):
        with pytest.raises(InvalidImage):
            decode(sent(data[:size], f"image/{kind.lower()}"))


def _with_size_of_extended(size: bytes) -> bytes:
    """An animation of 7 by 5 pixels whose header says another size."""
    second = Image.new("RGB", (7, 5), "red")
    data = saved(Image.new("RGB", (7, 5)), "WEBP", save_all=True, append_images=[second])
    return data[:24] + size + data[30:]


@pytest.mark.parametrize(
    ("media_type", "data"),
    [
        ("image/png", png(b"", 4, 4)),
        ("image/png", png(bytes(7), 1, 2, colour=7)),
        ("image/png", png(bytes(7), 1, 2, depth=5)),
        ("image/png", png(bytes(2), 1, 1, depth=8, colour=PALETTE)[:-20] + bytes(20)),
        ("image/webp", _with_size_of_extended(b"\1\0\0\1\0\0")),
    ],
)
def test_damaged(media_type: str, data: bytes) -> None:
    with pytest.raises(InvalidImage, match="damaged"):
        decode(sent(data, media_type))


def test_a_picture_of_another_size_than_was_read() -> None:
    image = sent(_picture("PNG"))
    with pytest.raises(InvalidImage, match="are of different sizes"):
        decode(evolve(image, file=evolve(image.file, stored_width=41)))


def test_a_bomb_unpacks_to_its_own_size_alone() -> None:
    """Pixels beyond those that the header promises are not unpacked."""
    rows = _row(b"\1\2\3") + bytes(50 << 20)
    assert pixels(png(rows, 1, 1)) == [[(1, 2, 3)]]


def test_no_other_decoder_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one that says it takes everything, and is asked first."""
    asked: list[object] = []
    monkeypatch.setattr(Image, "ID", ["ALL", *Image.ID])
    monkeypatch.setitem(Image.OPEN, "ALL", (lambda *given: asked.append(given), None))
    for kind in ("PNG", "JPEG", "WEBP"):
        decode(sent(_picture(kind), f"image/{kind.lower()}"))
    assert asked == []


def test_pillow_is_left_as_it_is() -> None:
    def state() -> list[object]:
        return [Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, ImageFile.MAXBLOCK]

    before = state()
    pixels(_picture("PNG"))
    assert state() == before


def test_threads_decode_at_a_time() -> None:
    images = [sent(_picture(kind), f"image/{kind.lower()}") for kind in ("PNG", "JPEG", "WEBP")]
    alone = [np.asarray(decode(image)) for image in images]
    equal: list[bool] = []

    def again(which: int) -> None:
        seen = [np.asarray(decode(images[which])) for _ in range(20)]
        equal.extend(np.array_equal(one, alone[which]) for one in seen)

    threads = [threading.Thread(target=again, args=(which % 3,)) for which in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [True] * 120


def _odd_files() -> list[tuple[str, bytes]]:
    picture = Image.open(BytesIO(_picture("PNG")))
    alpha = picture.convert("RGBA")
    both = {"exif": exif(6)}
    animation = {"save_all": True, "append_images": [picture.rotate(180)]}
    return [
        ("image/png", saved(picture, "PNG", **both)),
        ("image/png", saved(picture.quantize(16), "PNG", transparency=3)),
        ("image/png", saved(alpha, "PNG", **animation)),
        ("image/png", png(bytes(21) * 4, 10, 4, depth=16, colour=GREY)),
        ("image/jpeg", saved(picture, "JPEG", **both)),
        ("image/jpeg", saved(picture, "JPEG", progressive=True)),
        ("image/jpeg", saved(picture.convert("CMYK"), "JPEG")),
        ("image/webp", saved(picture, "WEBP", lossless=True, **both)),
        ("image/webp", saved(alpha, "WEBP", **animation)),
    ]


@given(
    which=st.sampled_from(_odd_files()),
    changes=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8
    ),
    cut=st.floats(0.5, 1),
    repaired=st.booleans(),
)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_mutated_files_are_decoded_or_refused(
    which: tuple[str, bytes], changes: list[tuple[float, int]], cut: float, repaired: bool
) -> None:
    media_type, data = which
    mutated = bytearray(data)
    for place, value in changes:
        mutated[12 + int(place * (len(data) - 12))] = value
    if cut < 0.9:
        del mutated[int(cut * len(data)) :]
    if repaired and media_type == "image/png":
        mutated = bytearray(_with_checksums(bytes(mutated)))
    with suppress(InvalidImage):
        image = sent(bytes(mutated), media_type)
        assert decode(image).size == (image.file.width, image.file.height)


def _with_checksums(data: bytes) -> bytes:
    """The PNG with right checksums, so that changes get past them."""
    out, position = [data[:8]], 8
    while position + 12 <= len(data):
        length, name = struct.unpack_from(">I4s", data, position)
        if position + 12 + length > len(data):
            break
        out.append(chunk(name, data[position + 8 : position + 8 + length]))
        position += 12 + length
    return b"".join([*out, data[position:]])
