"""Images on the way from a request to the engine: decoded, cut into tiles, and seen by the tower.

A few requests at a time decode their images, each one image after the other, and some more wait for
that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import trio
from attrs import field, frozen

from caldrix.http.errors import ApiError, api_error
from caldrix.models.lane import Features
from caldrix.vision.errors import InvalidImage
from caldrix.vision.eyes import Eyes
from caldrix.vision.parts import EncodedImage
from caldrix.vision.preprocessing import Pixels
from caldrix.vision.processor import ImageProcessor
from caldrix.weights.tensor import Float32

MOST_DECODING = 2
"""Requests whose images are decoded at the same time."""


@frozen
class PlacedImage:
    """An image, and where in the request it stands."""

    image: EncodedImage = field(repr=False)
    place: str | None


class ImageReader:
    """Makes features of a server's images; ``see`` makes them of a tile, in any one thread.

    ``queue_depth`` requests wait for a decoder at most.
    """

    def __init__(
        self, processor: ImageProcessor, see: Callable[[Pixels], Float32], queue_depth: int
    ) -> None:
        self._eyes = Eyes(processor, see, decoders=MOST_DECODING)
        self._most = MOST_DECODING + queue_depth
        self._present = 0
        self._decoders = trio.Semaphore(MOST_DECODING)

    @property
    def present(self) -> int:
        """Requests whose images are being decoded or wait for it."""
        return self._present

    def encode(self, rendered: str, images: Sequence[PlacedImage]) -> list[int]:
        """The tokens of a rendered chat with its images, of which none is decoded.

        Raises PlaceholderCount or InvalidText.
        """
        return self._eyes.encode(rendered, [placed.image for placed in images])

    async def features(
        self,
        images: Sequence[PlacedImage],
        prompt: Sequence[int],
        *,
        check: Callable[[], None] = lambda: None,
    ) -> Features:
        """What stands in the prompt for the images' tokens.

        ``check`` is called before each image and after each tile, and raises what ends the work.
        Raises ApiError: a 429 if too many wait, or a 400 that names the image at fault. Raises
        what the tower does.
        """
        with self._admitted():
            async with self._decoders:
                rows = [row for placed in images for row in await self._see(placed, check)]
        return self._eyes.features(prompt, rows)

    @contextmanager
    def _admitted(self) -> Iterator[None]:
        if self._present >= self._most:
            raise ApiError(429, "the image decode queue is full")
        self._present += 1
        try:
            yield
        finally:
            self._present -= 1

    async def _see(self, placed: PlacedImage, check: Callable[[], None]) -> Sequence[Float32]:
        """The features of each of an image's tiles, ``[tokens of a tile, width]``."""
        check()
        try:
            return await self._eyes.see(placed.image, check)
        except InvalidImage as error:
            raise api_error(error, param=placed.place) from error
