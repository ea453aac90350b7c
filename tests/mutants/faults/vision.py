"""Images taken, counted, limited or refused wrongly."""

from __future__ import annotations

import random
import re
import socket
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, evolve, field

from caldrix_conformance.contracts.caldrix.images import png
from tests.mutants.faults.registry import FAULTS, breaks
from tests.mutants.toy.model import Prompt
from tests.mutants.toy.rules import Refused
from tests.mutants.toy.server import CHAT, Json
from tests.mutants.toy.telemetry import Watch
from tests.mutants.toy.vision import DETAILS, FORMATS, Header, Image, VisionToy

SQUARE = png(1, 1).url
"""What servers that take a URL they should refuse see there."""


def _taking(clause_id: str, pattern: str) -> None:
    """A server that takes URLs of that ``pattern``, and so breaks one clause."""

    class Taking(VisionToy):
        def split_url(self, url: str, place: str) -> tuple[str, str]:
            taken = re.match(pattern, url) is not None
            return super().split_url(SQUARE if taken else url, place)

    Taking.__name__ = f"Takes_{clause_id}"
    FAULTS[Taking] = frozenset({clause_id})


_taking("images.url.gif", "data:image/gif;")
_taking("images.url.other-types", r"data:image/bmp;")
_taking("images.url.not-base64", "data:image/png,")
_taking("images.url.remote", "https?://")
_taking("images.url.other-schemes", "iVBOR")
_taking("images.base64.empty", "data:image/png;base64,$")


def _lacking(subtype: str, *clause_ids: str) -> None:
    """A server that does not know a type of image."""

    class Lacking(VisionToy):
        def split_url(self, url: str, place: str) -> tuple[str, str]:
            found, encoded = super().split_url(url, place)
            if found == subtype:
                raise Refused(400, "unknown type", place)
            return found, encoded

    Lacking.__name__ = f"Lacks_{subtype}"
    FAULTS[Lacking] = frozenset(clause_ids)


_lacking("jpeg", "images.url.jpeg", "images.part.messages")
_lacking("jpg", "images.url.jpg")
_lacking("webp", "images.url.webp")


@breaks(
    "images.part.taken",
    "images.part.messages",
    "images.url.png",
    "images.url.png-kinds",
    "images.url.jpeg",
    "images.url.jpg",
    "images.url.webp",
)
class RefusesThumbnails(VisionToy):
    def check_sides(self, header: Header, place: str) -> None:
        super().check_sides(header, place)
        if 1 < header.height < 32 and header.width < 32:
            raise Refused(400, "too small to see anything", place)


@breaks("images.url.png-kinds")
class KnowsEightBits(VisionToy):
    def pixels(self, image: Image) -> bytes:
        if image.subtype == "png" and image.data[24] == 16:
            raise Refused(400, "16 bits", image.place)
        return super().pixels(image)


@breaks("images.part.messages")
class LooksAtTheLastMessage(VisionToy):
    def images(self, body: Json) -> list[Image]:
        images = super().images(body)
        if len({image.place.partition("]")[0] for image in images}) > 1:
            raise Refused(400, "images in one message only", images[0].place)
        return images


@breaks("images.part.malformed")
class TakesABareUrl(VisionToy):
    def image(self, part: Json, place: str) -> Image:
        if isinstance(part.get("image_url"), str):
            part = part | {"image_url": {"url": part["image_url"]}}
        return super().image(part, place)


@breaks("images.part.malformed")
class PassesOverMalformedParts(VisionToy):
    def image(self, part: Json, place: str) -> Image:
        if "image_url" not in part:
            part = {"image_url": {"url": SQUARE}}
        return super().image(part, place)


@breaks("images.part.answer")
class SendsNoIdsOfImages(VisionToy):
    def whole(self, path: str, body: Json) -> Json:
        answer = super().whole(path, body)
        answer["choices"][0].pop("token_ids", None)
        return answer


class SmolVlmToy(VisionToy):
    """The right toy under the printed model's name."""

    name = "smolvlm"

    def check_model(self, name: str) -> None:
        if name != self.name:
            raise Refused(400, f"{self.name} is served, not {name}", "model")

    def frame(self, path: str, kind: str) -> Json:
        return super().frame(path, kind) | {"model": self.name}

    def get(self, path: str) -> Json | str:
        answer = super().get(path)
        if path == "/v1/models" and isinstance(answer, dict):
            answer["data"][0]["id"] = self.name
        return answer


@breaks("images.part.printed-count")
class CountsATokenMore(SmolVlmToy):
    def show(self, prompt: Prompt, images: Sequence[Image]) -> Prompt:
        shown = super().show(prompt, images)
        return evolve(shown, ids=(3, *shown.ids))


@breaks("images.text.joined")
class ReadsOneText(VisionToy):
    def without_images(self, body: Json) -> Any:
        messages = super().without_images(body)
        for message in messages if isinstance(messages, list) else ():
            content = message.get("content") if isinstance(message, dict) else None
            if isinstance(content, list) and len(content) == 3:
                message["content"] = [content[0], content[-1]]
        return messages


@breaks("images.url.signature")
class GoesByTheBytes(VisionToy):
    def split_url(self, url: str, place: str) -> tuple[str, str]:
        named, encoded = super().split_url(url, place)
        try:
            beginning = b64decode(encoded[:16])
        except ValueError as error:
            raise Refused(400, f"no base64: {error}", place) from error
        for subtype, form in FORMATS.items():
            if re.match(form.signature.encode("latin-1"), beginning, re.DOTALL):
                return subtype, encoded
        return named, encoded


@breaks("images.url.never-fetched")
class LooksWhetherItIsThere(VisionToy):
    def split_url(self, url: str, place: str) -> tuple[str, str]:
        found = re.match(r"https?://([0-9.]+):([0-9]+)/", url)
        if found is not None:
            try:
                socket.create_connection((found[1], int(found[2])), timeout=1).close()
            except OSError as error:
                raise Refused(400, f"not there: {error}", place) from error
        return super().split_url(url, place)


@breaks("images.base64.malformed")
class PassesOverOddCharacters(VisionToy):
    def decode_base64(self, encoded: str, place: str) -> bytes:
        return super().decode_base64(re.sub(r"[^A-Za-z0-9+/=]", "", encoded), place)


@breaks("images.base64.padding")
class PadsWhatItGets(VisionToy):
    def decode_base64(self, encoded: str, place: str) -> bytes:
        return super().decode_base64(encoded + "=" * (-len(encoded) % 4), place)


@breaks("images.bytes.broken")
class SeesNothingInBrokenImages(VisionToy):
    def pixels(self, image: Image) -> bytes:
        try:
            return super().pixels(image)
        except Refused:
            return b""


@breaks("images.bytes.broken")
class DiesOfBrokenImages(VisionToy):
    def pixels(self, image: Image) -> bytes:
        try:
            return super().pixels(image)
        except Refused as refused:
            raise ConnectionError("as if the process had ended") from refused


@breaks("images.detail.default")
class SeesLittleByDefault(VisionToy):
    def detail(self, given: Json, place: str) -> str:
        return super().detail({"detail": "low"} | given, place)


@breaks("images.detail.high")
class NeverSplits(VisionToy):
    def tiles(self, image: Image) -> int:
        return 1


@breaks("images.detail.low")
class SplitsLargePicturesAnyway(VisionToy):
    def tiles(self, image: Image) -> int:
        return super().tiles(image) + image.header.height // 512


@breaks("images.detail.other", "images.detail.null")
class TakesAnyDetail(VisionToy):
    def detail(self, given: Json, place: str) -> str:
        return DETAILS.get(str(given.get("detail")), "high")


@breaks("images.detail.other")
class ReadsDetailsLoosely(VisionToy):
    def detail(self, given: Json, place: str) -> str:
        return super().detail(given | {"detail": str(given.get("detail", "auto")).lower()}, place)


@breaks("images.detail.null")
class TakesNullForAbsent(VisionToy):
    def detail(self, given: Json, place: str) -> str:
        present = {name: value for name, value in given.items() if value is not None}
        return super().detail(present, place)


@breaks("images.tokens.counted", "images.detail.high")
class CountsTextAlone(VisionToy):
    def show(self, prompt: Prompt, images: Sequence[Image]) -> Prompt:
        return evolve(super().show(prompt, images), counted=prompt.tokens)


@breaks("images.tokens.every")
class SeesTheFirstImage(VisionToy):
    def show(self, prompt: Prompt, images: Sequence[Image]) -> Prompt:
        return super().show(prompt, images[:1])


@breaks("images.tokens.total")
class TotalsTheText(VisionToy):
    def usage(self, prompt: Prompt, ids: list[int]) -> Json:
        return super().usage(prompt, ids) | {"total_tokens": len(ids) + 17}


@breaks("images.count.most", "images.count.number", "images.tokens.every")
@define
class TakesSevenImages(VisionToy):
    most_images: int = 7


@breaks("images.count.over", "images.count.number")
@define
class TakesNineImages(VisionToy):
    most_images: int = 9


@breaks("images.count.over")
@define
class CountsByMessage(VisionToy):
    apart: bool = False

    def check_count(self, count: int) -> None:
        if count == 9 and self.apart:
            return
        super().check_count(count)

    def images(self, body: Json) -> list[Image]:
        self.apart = len(body.get("messages") or []) > 1
        return super().images(body)


@breaks("images.count.number")
class TellsNoNumber(VisionToy):
    def check_count(self, count: int) -> None:
        if count > self.most_images:
            raise Refused(400, "too many images", "messages")


@breaks("images.prompt.too-long")
class LooksBeforeItCounts(VisionToy):
    def image(self, part: Json, place: str) -> Image:
        image = super().image(part, place)
        self.pixels(image)
        return image


@breaks("images.placeholder.refused", "images.placeholder.words", "images.placeholder.string")
class ReadsPlaceholdersAsText(VisionToy):
    def check_text(self, text: str) -> None:
        pass


@breaks("images.placeholder.words")
class CallsThemTokens(VisionToy):
    def check_text(self, text: str) -> None:
        if "<image>" in text:
            raise Refused(400, "a special token in a text", "messages")


@breaks("images.placeholder.string")
class ReadsStringsUnlooked(VisionToy):
    def prompt(self, path: str, body: Json) -> Prompt:
        messages = body.get("messages")
        if path == CHAT and isinstance(messages, list) and len(messages) == 1:
            content = messages[0].get("content")
            if isinstance(content, str):
                message = messages[0] | {"content": content.replace("<image>", "<picture>")}
                body = body | {"messages": [message]}
        return super().prompt(path, body)


@breaks("images.answer.sees")
class SeesGreyEverywhere(VisionToy):
    def pixels(self, image: Image) -> bytes:
        super().pixels(image)
        return b""


@breaks("images.answer.same", "images.answer.streamed", "images.text.joined")
class SeesNoise(VisionToy):
    def pixels(self, image: Image) -> bytes:
        return super().pixels(image) + random.randbytes(8)


@breaks("images.answer.streamed")
class StreamsUnseeing(VisionToy):
    def events(self, path: str, body: Json) -> Iterator[str]:
        return super().events(path, body | {"messages": self.without_images(body)})


@breaks("images.answer.text-only")
class WrapsParts(VisionToy):
    def without_images(self, body: Json) -> Any:
        messages = super().without_images(body)
        for message in messages if isinstance(messages, list) else ():
            if isinstance(message, dict) and isinstance(message.get("content"), list):
                message["content"].append({"type": "text", "text": ""})
        return messages


@breaks("images.rows.own")
@define
class KeepsImageRows(VisionToy):
    kept: set[str] = field(factory=set)

    def cached(self, watch: Watch) -> int:
        key = repr(watch.body.get("messages", watch.body.get("prompt")))
        cached = watch.usage["prompt_tokens"] - 1 if key in self.kept else 0
        self.kept.add(key)
        return cached
