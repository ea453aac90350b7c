"""The tokens that stand for images in a prompt, after SmolVLM's processor.

A chat template writes one placeholder an image. In its place go, tile by tile, a token around the
image, the tile's row and column (or the mark of the whole image), and a token for each of the
tile's features; rows end with a newline. All of it follows from an image's width and height, so
that a prompt's length is known before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from caldrix.text.tokenizer import Tokenizer
from caldrix.vision.errors import PlaceholderCount, UnsupportedProcessor
from caldrix.vision.parts import PLACEHOLDER, EncodedImage
from caldrix.vision.tiling import TilePlan

AROUND_IMAGE = "<fake_token_around_image>"
WHOLE_IMAGE = "<global-img>"


@frozen
class ImageLayout:
    """How images stand in a model's prompts. Immutable, and safe to use from several threads."""

    tokenizer: Tokenizer
    tokens_per_tile: int
    image_token_id: int
    """The token that a tile's features take the place of."""

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, tokens_per_tile: int) -> ImageLayout:
        """Raises UnsupportedProcessor if the tokenizer has no tokens for images."""
        _token_id(tokenizer, AROUND_IMAGE)
        return cls(tokenizer, tokens_per_tile, _token_id(tokenizer, PLACEHOLDER))

    def image_text(self, plan: TilePlan) -> str:
        """What stands for one image, written out."""
        features = PLACEHOLDER * self.tokens_per_tile
        whole = f"{AROUND_IMAGE}{WHOLE_IMAGE}{features}{AROUND_IMAGE}"
        if not plan.rows:
            return whole
        rows = (
            "".join(
                f"{AROUND_IMAGE}<row_{row}_col_{column}>{features}"
                for column in range(1, plan.columns + 1)
            )
            for row in range(1, plan.rows + 1)
        )
        return "".join(f"{row}\n" for row in rows) + f"\n{whole}"

    def encode(self, rendered: str, plans: Sequence[TilePlan]) -> list[int]:
        """The tokens of a rendered chat with its images, one placeholder each, in order.

        Raises PlaceholderCount if the placeholders are not as many as the images, and InvalidText.
        """
        first, *others = rendered.split(PLACEHOLDER)
        _check_count(len(others), len(plans))
        pieces = [first]
        for plan, text in zip(plans, others, strict=True):
            pieces += (self.image_text(plan), text)
        tokens = self.tokenizer.encode_prompt("".join(pieces))
        # A tokenizer that normalizes texts may find the token in one that spells it otherwise.
        stray = tokens.count(self.image_token_id) - self.tokens_per_tile * sum(
            plan.tiles for plan in plans
        )
        _check_count(len(plans) + stray, len(plans))
        return tokens

    def count(self, plan: TilePlan) -> int:
        """The tokens of one image, the features' and those around them."""
        return len(self.tokenizer.encode_prompt(self.image_text(plan)))


def template_content(parts: Sequence[str | EncodedImage]) -> list[dict[str, str]]:
    """A message's parts as a chat template wants them; texts that follow one another are joined.

    The template gets a list even for a text alone: SmolVLM's passes over a content that is a
    string.
    """
    content: list[dict[str, str]] = []
    for part in parts:
        if isinstance(part, EncodedImage):
            content.append({"type": "image"})
        elif content and content[-1]["type"] == "text":
            content[-1]["text"] += f"\n{part}"
        else:
            content.append({"type": "text", "text": part})
    return content


def _check_count(found: int, images: int) -> None:
    if found != images:
        raise PlaceholderCount(
            f"the image placeholder count of the prompt is {found}, where {images} would be right;"
            f" only image_url parts may put {PLACEHOLDER} into a prompt"
        )


def _token_id(tokenizer: Tokenizer, token: str) -> int:
    ids = tokenizer.encode_prompt(token)
    if len(ids) != 1:
        raise UnsupportedProcessor(
            f"the tokenizer has no token {token}; fetch the model's files again"
        )
    return ids[0]
