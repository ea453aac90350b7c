"""Images from the disk in the prompts of `caldrix run`: flags, and what a chat keeps of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from attrs import define, field, frozen
from cyclopts import Parameter

from caldrix.cli.progress import TerminalProgress
from caldrix.errors import Refusal
from caldrix.vision.errors import InvalidImage, PlaceholderCount
from caldrix.vision.eyes import Eyes
from caldrix.vision.image_files import read_image_file
from caldrix.vision.parts import MAX_IMAGES, PLACEHOLDER, Detail, EncodedImage
from caldrix.weights.errors import printable
from caldrix.weights.tensor import Float32


@define(eq=False)
class Picture:
    """An image of a conversation."""

    name: str
    """Its file's, for the terminal."""
    image: EncodedImage = field(repr=False)
    rows: Sequence[Float32] | None = field(default=None, repr=False)
    """What the tower gave for each tile, once it has seen the image."""

    def __str__(self) -> str:
        file = self.image.file
        return f"{self.name} ({file.width} x {file.height})"


def read_picture(path: Path, detail: Detail) -> Picture:
    """The picture in a file. Raises InvalidImage, which names the path."""
    return Picture(printable(path.name, 60), read_image_file(path, detail))


def typed_path(text: str) -> Path:
    """A path as it is, also with blanks in it, or quoted as for a shell."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    return Path(words[0] if len(words) == 1 else text)


def check_spelling(where: str, text: str, remedy: str = "write the word otherwise") -> None:
    """Raises PlaceholderCount if a text would put an image where there is none."""
    if PLACEHOLDER in text:
        raise PlaceholderCount(
            f"{where} spells {PLACEHOLDER}, which stands for an image to this model; {remedy}"
        )


async def see_all(eyes: Eyes, pictures: Sequence[Picture]) -> Sequence[Float32]:
    """The rows of all tiles, of which those are computed that are not there yet.

    Raises InvalidImage, which names the file, or what the tower raises.
    """
    unseen = [picture for picture in pictures if picture.rows is None]
    if unseen:
        with TerminalProgress(transient=True) as progress:
            for picture in unseen:
                await _see(eyes, picture, progress)
    return [row for picture in pictures for row in picture.rows or ()]


async def _see(eyes: Eyes, picture: Picture, progress: TerminalProgress) -> None:
    progress.begin(f"looking at {picture.name}", eyes.tiles(picture.image), unit="pieces")
    try:
        picture.rows = await eyes.see(picture.image, lambda: progress.advance(1))
    except InvalidImage as error:
        raise InvalidImage(f"{picture.name}: {error}") from error


@Parameter(name="*")
@frozen
class ImageFlags:
    """The images that a prompt begins with."""

    image: Annotated[tuple[Path, ...], Parameter(negative=(), show_default=False)] = ()
    """A PNG, JPEG or WebP file to ask about, up to 8 times; in a chat they belong to the first
    message."""
    image_detail: Literal["high", "low"] | None = None
    """high, the default, shows the model an image's parts as well, enlarged; low the whole alone,
    which is faster."""

    @property
    def detail(self) -> Detail:
        """How much of each image the model sees."""
        return Detail(self.image_detail or "high")

    def read(self) -> list[Picture]:
        """The pictures that the flags name. Raises Refusal."""
        if len(self.image) > MAX_IMAGES:
            raise Refusal(f"--image can be given at most {MAX_IMAGES} times, got {len(self.image)}")
        try:
            return [read_picture(path, self.detail) for path in self.image]
        except InvalidImage as error:
            raise Refusal(f"--image {error}") from error
