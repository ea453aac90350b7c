"""Image parts: which URLs are taken, and how the others are refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from caldrix.vision.errors import InvalidImage, PlaceholderCount, TooManyImages
from caldrix.vision.parts import (
    MAX_FILE_BYTES,
    Detail,
    MediaType,
    check_image_count,
    check_text,
    read_image,
)
from tests.support.image_files import chunk, png, saved, sent, url

ROWS = (b"\0" + b"\x10\x20\x30" * 4) * 2
PNG = png(ROWS, 4, 2)
JPEG, WEBP = (saved(Image.new("RGB", (4, 2)), kind) for kind in ("JPEG", "WEBP"))


@pytest.mark.parametrize(
    ("header", "data", "kind"),
    [
        ("data:image/png;base64", PNG, MediaType.PNG),
        ("data:image/jpeg;base64", JPEG, MediaType.JPEG),
        ("data:image/jpg;base64", JPEG, MediaType.JPEG),
        ("data:image/webp;base64", WEBP, MediaType.WEBP),
        ("DATA:Image/PNG;Base64", PNG, MediaType.PNG),
    ],
)
def test_taken(header: str, data: bytes, kind: MediaType) -> None:
    image = read_image({"url": header + "," + url(data).partition(",")[2]})
    assert image.media_type is kind
    assert (image.file.width, image.file.height) == (4, 2)


@pytest.mark.parametrize(
    ("members", "detail"),
    [
        ({}, Detail.HIGH),
        ({"detail": "auto"}, Detail.HIGH),
        ({"detail": "high"}, Detail.HIGH),
        ({"detail": "low"}, Detail.LOW),
    ],
)
def test_detail(members: dict[str, str], detail: Detail) -> None:
    assert read_image({"url": url(PNG), **members}).detail is detail


@pytest.mark.parametrize("detail", [None, "", "LOW", "medium", 1, True, ["low"]])
def test_other_detail(detail: object) -> None:
    with pytest.raises(InvalidImage, match="detail must be auto, high or low, got"):
        read_image({"url": url(PNG), "detail": detail})


ENCODED = url(PNG).partition(",")[2]
SHOWN = "data:image/png;base64,"


@pytest.mark.parametrize(
    ("image_url", "words"),
    [
        (None, "must be an object with a url"),
        (url(PNG), "must be an object with a url"),
        ({}, "url must be a string"),
        ({"url": 7}, "url must be a string"),
        ({"url": "https://localhost/a.png"}, "'https' URLs are refused, and nothing is ever"),
        ({"url": "file:///a.png"}, "'file' URLs are refused"),
        ({"url": ENCODED}, "must be a data URL: "),
        ({"url": ""}, "must be a data URL: '' is refused"),
        ({"url": f"data:image/gif;base64,{ENCODED}"}, "type 'image/gif' are not taken"),
        ({"url": f"data:;base64,{ENCODED}"}, "type '' are not taken"),
        ({"url": f"data:image/png,{ENCODED}"}, "must say ;base64, and nothing else"),
        ({"url": f"data:image/png;charset=utf-8;base64,{ENCODED}"}, "must say ;base64, and"),
        ({"url": "data:image/png;base64"}, "must say ;base64, and nothing else"),
        ({"url": SHOWN}, "has no bytes"),
        ({"url": SHOWN + "=!?="}, "not whole base64"),
        ({"url": SHOWN + ENCODED[:8] + "\n" + ENCODED[8:]}, "not whole base64"),
        ({"url": SHOWN + ENCODED[:40] + "-" + ENCODED[40:]}, "not whole base64"),
        ({"url": SHOWN + ENCODED[:40] + "é" + ENCODED[40:]}, "not whole base64"),
        ({"url": SHOWN + url(PNG + b"?").partition(",")[2].rstrip("=")}, "not whole base64"),
        ({"url": url(JPEG)}, "do not begin as image/png does"),
        ({"url": url(PNG, "image/webp")}, "do not begin as image/webp does"),
        ({"url": url(b"RIFF\4\0\0\0WAVE", "image/webp")}, "do not begin as image/webp does"),
    ],
)
def test_refused(image_url: object, words: str) -> None:
    with pytest.raises(InvalidImage, match=re.escape(words)):
        read_image(image_url)


def test_a_file_may_have_eight_mebibytes() -> None:
    padding = MAX_FILE_BYTES - len(png(ROWS, 4, 2, before=chunk(b"pdDg", b"")))
    largest = png(ROWS, 4, 2, before=chunk(b"pdDg", bytes(padding)))
    assert len(largest) == MAX_FILE_BYTES
    sent(largest)
    with pytest.raises(InvalidImage, match="at most 8 MiB, 8388608 bytes, got 8388609"):
        sent(largest + b"!")


@given(st.text(max_size=300))
def test_any_other_text_is_refused_in_a_sentence(text: str) -> None:
    for spelled in (f"x{text}", f"{SHOWN}!{text}", f"data:{text}/,{ENCODED}"):
        with pytest.raises(InvalidImage) as refused:
            read_image({"url": spelled})
        assert len(str(refused.value)) < 400


def test_eight_images_may_come() -> None:
    check_image_count(8)
    with pytest.raises(TooManyImages, match="at most 8 images can come in one request, got 9"):
        check_image_count(9)


def test_a_text_may_not_spell_the_placeholder() -> None:
    check_text("An image, <img>, <images> and < image >.")
    with pytest.raises(PlaceholderCount, match="image placeholder count"):
        check_text("Look at <image> and tell.")
