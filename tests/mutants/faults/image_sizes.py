"""Limits of images, of their files and of bodies that lie elsewhere, or are told wrongly."""

from __future__ import annotations

from attrs import define

from tests.mutants.faults.registry import breaks
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import COMPLETIONS, Json
from tests.mutants.toy.vision import MIB, Header, Image, VisionToy


@breaks("image-sizes.side.most", "image-sizes.side.number", "image-sizes.side.header")
@define
class TakesAPixelLess(VisionToy):
    most_side: int = 4095


@breaks("image-sizes.side.over", "image-sizes.side.number", "image-sizes.side.header")
@define
class TakesAPixelMore(VisionToy):
    most_side: int = 4097


@breaks("image-sizes.side.over", "image-sizes.side.header")
class LooksAtTheWidth(VisionToy):
    def check_sides(self, header: Header, place: str) -> None:
        super().check_sides(Header(header.width, 1), place)


@breaks("image-sizes.side.number", "image-sizes.side.header")
class TellsNoSide(VisionToy):
    def check_sides(self, header: Header, place: str) -> None:
        try:
            super().check_sides(header, place)
        except Refused:
            raise Refused(400, "the picture is too large", place) from None


@breaks("image-sizes.side.header")
class DecodesFirst(VisionToy):
    def header(self, subtype: str, data: bytes, place: str) -> Header:
        header = super().header(subtype, data, place)
        self.pixels(Image(place, subtype, data, header, "low"))
        return header


@breaks("image-sizes.file.most", "image-sizes.file.number")
@define
class TakesAByteLess(VisionToy):
    most_file: int = 8 * MIB - 1


@breaks("image-sizes.file.over", "image-sizes.file.number")
@define
class TakesAByteMore(VisionToy):
    most_file: int = 8 * MIB + 1


@breaks("image-sizes.file.number")
class TellsNoMebibytes(VisionToy):
    def check_file(self, data: bytes, place: str) -> None:
        try:
            super().check_file(data, place)
        except Refused:
            raise Refused(400, "the file is too large", place) from None


@breaks("image-bodies.most")
@define
class EndsBodiesEarly(VisionToy):
    most_bytes: int = 32 * MIB - 1


@breaks("image-bodies.over")
@define
class EndsBodiesLate(VisionToy):
    most_bytes: int = 32 * MIB + 1


@breaks("image-bodies.routes")
class KeepsFourMebibytesElsewhere(VisionToy):
    def check(self, path: str, body: Json) -> None:
        if path == COMPLETIONS and len(self.encode(body)) > 4 * MIB:
            raise Refused(413, "too large")
        super().check(path, body)
