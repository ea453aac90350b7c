"""From an image to the tiles of normalized pixels that a vision tower takes.

Equal to SmolVLM's processor in its Pillow form, bit for bit: every resampling is Pillow's, to whole
levels, and what follows is one table of 256 values a channel.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from caldrix.vision.settings import ProcessorSettings
from caldrix.vision.tiling import Size, TilePlan

Pixels = NDArray[np.float32]


def make_tiles(image: Image.Image, plan: TilePlan, settings: ProcessorSettings) -> Iterator[Pixels]:
    """Each tile, float32 [3, side, side], row after row and the whole image last.

    ``image`` is upright, in mode RGB and of the plan's size; it is let go of once it is resized. Of
    tiles one is held at a time.
    """
    assert (image.width, image.height) == (plan.source.width, plan.source.height)
    table = settings.normalized_levels()
    side = settings.tile_side
    for size in (plan.resized, plan.canvas):
        image = _resize(image, size, settings)
    for row in range(plan.rows):
        for column in range(plan.columns):
            left, top = column * side, row * side
            yield _normalize(image.crop((left, top, left + side, top + side)), table)
    yield _normalize(_resize(image, Size(side, side), settings), table)


def _resize(image: Image.Image, size: Size, settings: ProcessorSettings) -> Image.Image:
    return image.resize((size.width, size.height), settings.resample)


def _normalize(tile: Image.Image, table: Pixels) -> Pixels:
    levels = np.asarray(tile)
    return np.stack([table[channel][levels[..., channel]] for channel in range(3)])
