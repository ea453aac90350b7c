"""The pictures that cases send are what they are said to be, to a reader of the toys' own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caldrix_conformance.contracts.caldrix.images import (
    GIF,
    JPEG,
    RED,
    WEBP,
    WEBP_LOSSY,
    Picture,
    broken_png,
    jpeg_of_size,
    png,
    png_kinds,
    png_of_bytes,
    webp_of_size,
)
from caldrix_conformance.options import Settings
from caldrix_conformance.run import judge
from caldrix_conformance.verdicts import Status
from tests.mutants.faults.vision import SmolVlmToy
from tests.mutants.toy.server import serving
from tests.mutants.toy.vision import FORMATS, Header


def header(picture: Picture) -> Header:
    return FORMATS[picture.subtype].header(picture.data)


def pixels(picture: Picture) -> bytes:
    return FORMATS[picture.subtype].pixels(picture.data, header(picture))


def test_a_png() -> None:
    picture = png(3, 2)
    assert header(picture) == Header(3, 2)
    assert pixels(picture) == (b"\0" + bytes(RED) * 3) * 2
    assert picture.url.startswith("data:image/png;base64,iVBORw0KGgo")


@pytest.mark.parametrize("size", [200, 1000, 8 * 1024 * 1024 + 1])
def test_a_png_of_some_bytes(size: int) -> None:
    picture = png_of_bytes(size)
    assert len(picture.data) == size
    assert header(picture) == Header(8, 8)
    assert pixels(picture)


@pytest.mark.parametrize("picture", [JPEG, WEBP, WEBP_LOSSY, *(one for _, one in png_kinds())])
def test_whole_pictures(picture: Picture) -> None:
    assert header(picture) == Header(8, 8)
    assert pixels(picture)


@pytest.mark.parametrize("make", [broken_png, jpeg_of_size, webp_of_size])
def test_sizes_in_headers(make: Callable[[int, int], Picture]) -> None:
    assert header(make(4097, 5)) == Header(4097, 5)
    assert header(make(9, 16383)) == Header(9, 16383)


def test_a_gif() -> None:
    assert GIF.data.startswith(b"GIF87a\x08\x00\x08\x00")


def test_the_printed_count_is_that_of_the_printed_model() -> None:
    with serving(SmolVlmToy()) as url:
        report = judge(Settings(url=url, only=["images.part.*"]))
    assert report is not None
    assert {verdict.status for verdict in report.verdicts} == {Status.PASSED}
