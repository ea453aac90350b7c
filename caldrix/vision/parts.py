"""Image parts of chat messages: data URLs of PNG, JPEG and WebP files, within limits.

Nothing is fetched and no pixel is decoded. What is limited as an encoded image is the file that
the URL's base64 stands for: MAX_FILE_BYTES of it, not of its spelling.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from enum import Enum

from attrs import frozen

from caldrix.errors import quoted
from caldrix.vision.errors import InvalidImage, PlaceholderCount, TooManyImages
from caldrix.vision.header import ImageFile
from caldrix.vision.jpeg import JPEG_SIGNATURE, read_jpeg
from caldrix.vision.png import PNG_SIGNATURE, read_png
from caldrix.vision.webp import WEBP_SIGNATURE, read_webp

MAX_IMAGES = 8
"""The most images in one request."""
MAX_FILE_BYTES = 8 << 20
"""The most bytes of one image's file."""
PLACEHOLDER = "<image>"
"""The text that stands for an image in a prompt."""


class MediaType(Enum):
    """A type of image files that is taken."""

    PNG = "image/png"
    JPEG = "image/jpeg"
    WEBP = "image/webp"


class Detail(Enum):
    """How much of an image the model sees."""

    HIGH = "high"
    """The whole image, and each of the tiles it is split into."""
    LOW = "low"
    """The whole image as one tile."""


@frozen
class EncodedImage:
    """An image of a request, read as far as its header."""

    file: ImageFile
    media_type: MediaType
    detail: Detail


@frozen
class _Format:
    signature: re.Pattern[bytes]
    read: Callable[[bytes], ImageFile]


_FORMATS: Mapping[MediaType, _Format] = {
    MediaType.PNG: _Format(re.compile(re.escape(PNG_SIGNATURE)), read_png),
    MediaType.JPEG: _Format(re.compile(re.escape(JPEG_SIGNATURE)), read_jpeg),
    MediaType.WEBP: _Format(WEBP_SIGNATURE, read_webp),
}
_SPELLINGS = {kind.value: kind for kind in MediaType} | {"image/jpg": MediaType.JPEG}
_DETAILS = {"auto": Detail.HIGH, "high": Detail.HIGH, "low": Detail.LOW}
_FORM = "send data:image/png;base64,… (or image/jpeg, image/webp)"
_LONGEST_HEADER = 200
_ABSENT = object()


def read_image(image_url: object) -> EncodedImage:
    """The image that a content part's ``image_url`` holds.

    Members other than url and detail are passed over. Raises InvalidImage.
    """
    if not isinstance(image_url, Mapping):
        raise InvalidImage(
            "an image part's image_url must be an object with a url, as in"
            ' {"url": "data:image/png;base64,…"}'
        )
    url = image_url.get("url")
    if not isinstance(url, str):
        raise InvalidImage(f"an image's url must be a string; {_FORM}")
    detail = _read_detail(image_url.get("detail", _ABSENT))
    media_type, encoded = _split(url)
    data = _decode_base64(encoded)
    image_format = _FORMATS[media_type]
    if not image_format.signature.match(data):
        raise InvalidImage(
            f"the image's bytes do not begin as {media_type.value} does; name the type it is of"
        )
    return EncodedImage(image_format.read(data), media_type, detail)


def read_image_bytes(data: bytes, detail: Detail) -> EncodedImage:
    """The image of a file that nobody named the type of; it shows. Raises InvalidImage."""
    for media_type, image_format in _FORMATS.items():
        if image_format.signature.match(data):
            return EncodedImage(image_format.read(data), media_type, detail)
    raise InvalidImage("the file is no PNG, JPEG or WebP image; save it as one of them")


def check_image_count(count: int) -> None:
    """Raises TooManyImages if a request holds more than MAX_IMAGES."""
    if count > MAX_IMAGES:
        raise TooManyImages(f"at most {MAX_IMAGES} images can come in one request, got {count}")


def check_text(text: str) -> None:
    """Raises PlaceholderCount if a text of a request spells an image's placeholder."""
    if PLACEHOLDER in text:
        raise PlaceholderCount(
            f"a text spells {PLACEHOLDER}, which would change the image placeholder count; send"
            " images as image_url parts, and write the word otherwise"
        )


def _read_detail(value: object) -> Detail:
    if value is _ABSENT:
        return Detail.HIGH
    detail = _DETAILS.get(value) if isinstance(value, str) else None
    if detail is None:
        raise InvalidImage(f"an image's detail must be auto, high or low, got {quoted(value)}")
    return detail


def _split(url: str) -> tuple[MediaType, str]:
    """The type that a data URL names and its base64. Scheme, type and ``base64`` have no case."""
    header, comma, _ = url[:_LONGEST_HEADER].partition(",")
    scheme, colon, described = header.partition(":")
    if not colon or scheme.lower() != "data":
        kind = f"{quoted(scheme)} URLs are" if colon else f"{quoted(header)} is"
        raise InvalidImage(
            f"an image's url must be a data URL: {kind} refused, and nothing is ever fetched;"
            f" {_FORM}"
        )
    media_type, *parameters = described.split(";")
    known = _SPELLINGS.get(media_type.lower())
    if known is None:
        raise InvalidImage(f"images of type {quoted(media_type)} are not taken; {_FORM}")
    if not comma or [parameter.lower() for parameter in parameters] != ["base64"]:
        raise InvalidImage(
            f"an image's data URL must say ;base64, and nothing else behind its type; {_FORM}"
        )
    return known, url[len(header) + 1 :]


def _decode_base64(encoded: str) -> bytes:
    size = len(encoded) // 4 * 3 - encoded.count("=", -2)
    if size > MAX_FILE_BYTES:
        raise InvalidImage(
            f"an image's file may have at most {MAX_FILE_BYTES >> 20} MiB, {MAX_FILE_BYTES} bytes,"
            f" got {size}; send a smaller one"
        )
    if not encoded:
        raise InvalidImage("the image has no bytes; send its file in base64")
    try:
        return b64decode(encoded, validate=True)
    except ValueError as error:
        raise InvalidImage(
            "the image's data is not whole base64: only A-Z, a-z, 0-9, + and / may stand in it,"
            " padded with = to a multiple of four"
        ) from error
