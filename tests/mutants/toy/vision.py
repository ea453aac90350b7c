"""A toy that takes images: it reads headers, unpacks PNGs, and sees no more than a checksum.

Its tile has so many tokens that the document's printed question counts as SmolVLM's does.
"""

from __future__ import annotations

import binascii
import re
import struct
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from typing import Any, ClassVar

from attrs import define, evolve, frozen

from caldrix_conformance.capabilities import Capability
from tests.mutants.toy.model import TOKENS, Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, Json, right
from tests.mutants.toy.telemetry import ObservedToy

MIB = 1024 * 1024
TILE_TOKENS = 65
TILE_SIDE = 64
HOLE = "\ue000"
"""Stands for an image among the texts."""
DETAILS = {"auto": "high", "high": "high", "low": "low"}


@frozen
class Header:
    """What the beginning of an image file says."""

    width: int
    height: int


@frozen
class Image:
    """An image part that has been read as far as its header."""

    place: str
    subtype: str
    data: bytes
    header: Header
    detail: str


def _png_header(data: bytes) -> Header:
    return Header(*struct.unpack_from(">II", data, 16))


def _jpeg_header(data: bytes) -> Header:
    height, width = struct.unpack_from(">HH", data, data.index(b"\xff\xc0") + 5)
    return Header(width, height)


def _webp_header(data: bytes) -> Header:
    if data[12:16] == b"VP8L":
        (bits,) = struct.unpack_from("<I", data, 21)
        return Header(bits % 2**14 + 1, (bits >> 14) % 2**14 + 1)
    width, height = struct.unpack_from("<HH", data, 26)
    return Header(width % 2**14, height % 2**14)


def _png_pixels(data: bytes, header: Header) -> bytes:
    depth, colour = data[24], data[25]
    bits = header.width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    packed, position = b"", 8
    while data[position + 4 : position + 8] != b"IEND":
        (length,) = struct.unpack_from(">I", data, position)
        if data[position + 4 : position + 8] == b"IDAT":
            packed += data[position + 8 : position + 8 + length]
        position += length + 12
    pixels = zlib.decompress(packed)
    if not pixels or len(pixels) != (ceil(bits / 8) + 1) * header.height:
        raise ValueError("pixels of another size")
    return pixels


def _jpeg_pixels(data: bytes, header: Header) -> bytes:
    if not data.endswith(b"\xff\xd9"):
        raise ValueError("no end of image")
    return data


def _webp_pixels(data: bytes, header: Header) -> bytes:
    (length,) = struct.unpack_from("<I", data, 4)
    if len(data) != length + 8:
        raise ValueError("another length")
    return data


@frozen
class Format:
    """How files of a type begin, and how the toy reads them."""

    signature: str
    header: Callable[[bytes], Header]
    pixels: Callable[[bytes, Header], bytes]


JPEG = Format(r"\xff\xd8\xff", _jpeg_header, _jpeg_pixels)
FORMATS: Mapping[str, Format] = {
    "png": Format(r"\x89PNG\r\n\x1a\n", _png_header, _png_pixels),
    "jpeg": JPEG,
    "jpg": JPEG,
    "webp": Format(r"RIFF....WEBP", _webp_header, _webp_pixels),
}

_UNREADABLE = (ValueError, LookupError, struct.error, zlib.error, binascii.Error)


@right
@define
class VisionToy(ObservedToy):
    """Images in messages; each step of reading them is a method that a fault can replace."""

    lacks: ClassVar[frozenset[Capability]] = ObservedToy.lacks - {Capability.VISION} | {
        Capability.TEXT_ONLY
    }

    most_bytes: int = 32 * MIB
    most_images: int = 8
    most_side: int = 4096
    most_file: int = 8 * MIB

    def prompt(self, path: str, body: Json) -> Prompt:
        if path != CHAT:
            return super().prompt(path, body)
        images = self.images(body)
        return self.show(super().prompt(path, body), images)

    def show(self, prompt: Prompt, images: Sequence[Image]) -> Prompt:
        """The prompt with the images' tokens, which depend on their pixels."""
        ids = [token for image in images for token in self.see(image)]
        shown = evolve(prompt, ids=(*prompt.ids, *ids))
        if prompt.counted is not None:
            shown = evolve(shown, counted=prompt.counted + len(ids))
        return self.fit(shown, "messages")

    def see(self, image: Image) -> list[int]:
        sum_of = zlib.crc32(self.pixels(image))
        tokens = [3 + (sum_of >> shift) % (len(TOKENS) - 3) for shift in range(TILE_TOKENS // 5)]
        return tokens * 5 * self.tiles(image)

    def tiles(self, image: Image) -> int:
        if image.detail == "low":
            return 1
        return 1 + ceil(image.header.width / TILE_SIDE) * ceil(image.header.height / TILE_SIDE)

    def pixels(self, image: Image) -> bytes:
        try:
            return FORMATS[image.subtype].pixels(image.data, image.header)
        except _UNREADABLE as error:
            raise Refused(400, f"broken: {error}", image.place) from error

    def messages(self, body: Json) -> list[str]:
        texts = super().messages(body | {"messages": self.without_images(body)})
        for text in texts:
            self.check_text(text)
        return [self.without_holes(text) for text in texts]

    def without_images(self, body: Json) -> Any:
        """The messages with a text in place of each image, so that no part changes its place."""
        messages = body.get("messages")
        if not isinstance(messages, list):
            return messages
        return [
            message | {"content": [_hole(part) for part in message["content"]]}
            if isinstance(message, dict) and isinstance(message.get("content"), list)
            else message
            for message in messages
        ]

    def without_holes(self, text: str) -> str:
        return re.sub(f"{HOLE}\n?|\n{HOLE}", "", text)

    def check_text(self, text: str) -> None:
        if "<image>" in text:
            raise Refused(400, "wrong image placeholder count", "messages")

    def images(self, body: Json) -> list[Image]:
        messages = body.get("messages")
        parts = [
            (part, f"messages[{i}].content[{j}]")
            for i, message in enumerate(messages if isinstance(messages, list) else ())
            if isinstance(message, dict) and isinstance(message.get("content"), list)
            for j, part in enumerate(message["content"])
            if _is_image(part)
        ]
        self.check_count(len(parts))
        return [self.image(part, place) for part, place in parts]

    def check_count(self, count: int) -> None:
        if count > self.most_images:
            raise Refused(400, f"{count} images, {self.most_images} may come", "messages")

    def image(self, part: Json, place: str) -> Image:
        given = part.get("image_url")
        if not isinstance(given, dict) or not isinstance(given.get("url"), str):
            raise Refused(400, "no image_url with a url", place)
        detail = self.detail(given, place)
        subtype, encoded = self.split_url(given["url"], place)
        data = self.decode_base64(encoded, place)
        self.check_file(data, place)
        self.check_signature(subtype, data, place)
        header = self.header(subtype, data, place)
        self.check_sides(header, place)
        return Image(place, subtype, data, header, detail)

    def detail(self, given: Json, place: str) -> str:
        detail = given.get("detail", "auto")
        if not isinstance(detail, str) or detail not in DETAILS:
            raise Refused(400, f"no detail: {detail!r}", f"{place}.image_url.detail")
        return DETAILS[detail]

    def split_url(self, url: str, place: str) -> tuple[str, str]:
        found = re.fullmatch(rf"data:image/({'|'.join(FORMATS)});base64,(.*)", url, re.DOTALL)
        if found is None:
            raise Refused(400, "no data URL of an image", place)
        return found[1], found[2]

    def decode_base64(self, encoded: str, place: str) -> bytes:
        try:
            return b64decode(encoded, validate=True)
        except ValueError as error:
            raise Refused(400, f"no base64: {error}", place) from error

    def check_file(self, data: bytes, place: str) -> None:
        if len(data) > self.most_file:
            raise Refused(400, f"{len(data)} bytes, {self.most_file} may come", place)

    def check_signature(self, subtype: str, data: bytes, place: str) -> None:
        signature = FORMATS[subtype].signature.encode("latin-1")
        if re.match(signature, data, re.DOTALL) is None:
            raise Refused(400, f"no {subtype}", place)

    def header(self, subtype: str, data: bytes, place: str) -> Header:
        try:
            return FORMATS[subtype].header(data)
        except _UNREADABLE as error:
            raise Refused(400, f"broken: {error}", place) from error

    def check_sides(self, header: Header, place: str) -> None:
        if not header.width or not header.height:
            raise Refused(400, "no pixels", place)
        longest = max(header.width, header.height)
        if longest > self.most_side:
            raise Refused(400, f"a side of {longest}, {self.most_side} may come", place)


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"


def _hole(part: Any) -> Any:
    return {"type": "text", "text": HOLE} if _is_image(part) else part
