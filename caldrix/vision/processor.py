"""A model's image processor: what its files and its tokenizer decide about images, in one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from attrs import frozen

from caldrix.text.tokenizer import Tokenizer
from caldrix.vision.decoding import decode
from caldrix.vision.errors import UnsupportedProcessor
from caldrix.vision.layout import ImageLayout
from caldrix.vision.parts import EncodedImage
from caldrix.vision.preprocessing import Pixels, make_tiles
from caldrix.vision.settings import ProcessorSettings
from caldrix.vision.tiling import Size, TilePlan, plan_tiles


@frozen
class ImageProcessor:
    """Immutable, and safe to use from several threads."""

    settings: ProcessorSettings
    layout: ImageLayout

    @classmethod
    def from_directory(cls, path: Path, tokenizer: Tokenizer) -> ImageProcessor:
        """Reads a model directory. Raises UnsupportedProcessor, UnsupportedModel or CorruptFile."""
        settings = ProcessorSettings.from_directory(path)
        return cls(settings, ImageLayout.for_tokenizer(tokenizer, settings.tokens_per_tile))

    def check_tower(self, side: int, tokens_per_tile: int, image_token_id: int) -> None:
        """Raises UnsupportedProcessor unless the model's tower takes and gives the same."""
        self.settings.check_tower(image_size=side, tokens_per_tile=tokens_per_tile)
        if self.layout.image_token_id != image_token_id:
            raise UnsupportedProcessor(
                f"config.json: image_token_id is {image_token_id}, and the tokenizer has "
                f"{self.layout.image_token_id} for it; fetch the model's files again"
            )

    def plan(self, image: EncodedImage) -> TilePlan:
        """How the image is going to be resized and split; decodes nothing."""
        size = Size(image.file.width, image.file.height)
        return plan_tiles(size, image.detail, self.settings)

    def encode(self, rendered: str, images: Sequence[EncodedImage]) -> list[int]:
        """The tokens of a rendered chat with its images; decodes nothing.

        Raises PlaceholderCount and InvalidText.
        """
        return self.layout.encode(rendered, [self.plan(image) for image in images])

    def tiles(self, image: EncodedImage) -> Iterator[Pixels]:
        """Decodes the image and makes its tiles, float32 [3, side, side], one at a time.

        They go in the order of the features' tokens. Raises InvalidImage before the first of them.
        """
        return make_tiles(decode(image), self.plan(image), self.settings)
