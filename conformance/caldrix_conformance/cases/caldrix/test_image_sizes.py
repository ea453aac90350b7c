"""The sizes of pictures and of their files."""

from __future__ import annotations

import pytest

from caldrix_conformance.answers import Answer, numbers_in
from caldrix_conformance.contracts.caldrix.images import (
    Picture,
    broken_png,
    jpeg_of_size,
    png,
    png_of_bytes,
    webp_of_size,
)
from caldrix_conformance.endpoints import CHAT
from caldrix_conformance.marks import checks
from caldrix_conformance.target import Target

MIB = 1024 * 1024
MOST_IN_A_FILE = 8 * MIB
PLACE = "messages[0].content[1]"


def show(target: Target, picture: Picture) -> Answer:
    content = [{"type": "text", "text": "Describe it."}, picture.part()]
    return target.ask(CHAT, messages=[{"role": "user", "content": content}])


@checks("image-sizes.side.most")
def test_longest_side(target: Target) -> None:
    show(target, png(4096, 1024)).completion(CHAT)


UNDECODABLE = [
    pytest.param(broken_png(4097, 8), id="png"),
    pytest.param(broken_png(2**31 - 1, 2**31 - 1), id="png-largest"),
    pytest.param(jpeg_of_size(4097, 8), id="jpeg"),
    pytest.param(jpeg_of_size(8, 65535), id="jpeg-largest"),
    pytest.param(webp_of_size(8, 4097), id="webp"),
]


@checks("image-sizes.side.over")
@pytest.mark.parametrize("picture", [png(4097, 8), png(8, 4097)])
def test_side_too_long(target: Target, picture: Picture) -> None:
    show(target, picture).expect_refusal(PLACE, within=True)


@checks("image-sizes.side.header")
@pytest.mark.parametrize("picture", UNDECODABLE)
def test_side_in_the_header(target: Target, picture: Picture) -> None:
    """Pixels that aren't there can't be decoded: the header must have been enough."""
    answer = show(target, picture)
    answer.expect_refusal(PLACE, within=True)
    message = answer.error_message
    assert 4096 in numbers_in(message), f"not refused for a side over 4096: {message!r}"


@checks("image-sizes.side.number")
def test_side_number(target: Target) -> None:
    message = show(target, png(4097, 8)).expect(400).error_message
    assert 4096 in numbers_in(message), f"the message does not say 4096: {message!r}"


@checks("image-sizes.file.most")
def test_largest_file(target: Target) -> None:
    show(target, png_of_bytes(MOST_IN_A_FILE)).completion(CHAT)


@pytest.fixture(scope="session")
def large_file(target: Target) -> Answer:
    return show(target, png_of_bytes(MOST_IN_A_FILE + 1))


@checks("image-sizes.file.over")
def test_file_too_large(large_file: Answer) -> None:
    large_file.expect_refusal(PLACE, within=True)


@checks("image-sizes.file.number")
def test_file_number(large_file: Answer) -> None:
    message = large_file.expect(400).error_message
    assert {8, MOST_IN_A_FILE} & numbers_in(message), f"the message has no 8 MiB: {message!r}"
