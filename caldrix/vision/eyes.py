"""What a model sees with: images become tiles, and tiles the features that stand in a prompt.

Decoding and the tower take seconds. Both are off the event loop, apart from the engine's steps, and
whoever leaves is done with by the end of the file, or of the tile, that is in work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import trio

from caldrix.models.lane import Features
from caldrix.models.loading import TextModel
from caldrix.vision.parts import EncodedImage
from caldrix.vision.preprocessing import Pixels
from caldrix.vision.processor import ImageProcessor
from caldrix.weights.tensor import Float32


class Eyes:
    """An image processor, and the tower behind it.

    ``encode`` makes the features of a tile, in any one thread. At most ``decoders`` images are
    decoded at the same time, and the tower sees one tile at a time.
    """

    def __init__(
        self, processor: ImageProcessor, encode: Callable[[Pixels], Float32], *, decoders: int = 1
    ) -> None:
        self._processor = processor
        self._encode = encode
        # Threads beyond those of the texts: images take longer, and must not hold those up.
        self._decoding = trio.CapacityLimiter(decoders)
        self._seeing = trio.CapacityLimiter(1)

    @classmethod
    def of(cls, model: TextModel, processor: ImageProcessor | None) -> Eyes | None:
        """A model's own; None for one that takes text only. ``processor`` is `find_processor`'s."""
        if model.vision is None or processor is None:
            return None
        return cls(processor, model.vision.encode)

    def encode(self, rendered: str, images: Sequence[EncodedImage]) -> list[int]:
        """The tokens of a rendered chat with its images, of which none is decoded.

        Raises PlaceholderCount or InvalidText.
        """
        return self._processor.encode(rendered, images)

    def tiles(self, image: EncodedImage) -> int:
        """How many tiles the image is going to be cut into; decodes nothing."""
        return self._processor.plan(image).tiles

    async def see(
        self, image: EncodedImage, seen: Callable[[], object] = lambda: None
    ) -> list[Float32]:
        """The features of each of an image's tiles, ``[tokens of a tile, width]``.

        ``seen`` is called after each, and may raise what ends the work. Raises InvalidImage, or
        what the tower raises.
        """
        tiles = await trio.to_thread.run_sync(self._processor.tiles, image, limiter=self._decoding)

        def see_next() -> Float32 | None:
            tile = next(tiles, None)
            return None if tile is None else self._encode(tile)

        rows: list[Float32] = []
        while (row := await trio.to_thread.run_sync(see_next, limiter=self._seeing)) is not None:
            rows.append(row)
            seen()
        return rows

    def features(self, prompt: Sequence[int], rows: Sequence[Float32]) -> Features:
        """What stands in a prompt for its images' tokens; ``rows`` are its tiles', in order."""
        tokens = np.array(prompt, np.int64)
        (places,) = np.nonzero(tokens == self._processor.layout.image_token_id)
        return Features(places, np.concatenate(rows))


def find_processor(model: TextModel, path: Path) -> ImageProcessor | None:
    """What makes images of the tiles that a model's tower takes; None for a model without one.

    Raises a Refusal if the files at ``path`` say nothing of it, or what does not go together.
    """
    if model.vision is None:
        return None
    tower = model.vision.tower
    processor = ImageProcessor.from_directory(path, model.tokenizer)
    processor.check_tower(tower.side, tower.tokens, tower.image_token)
    return processor
