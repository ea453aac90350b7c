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
    table = normalized_levels(settings)
    side = settings.tile_side
    for size in (plan.resized, plan.canvas):
        image = _resize(image, size, settings)
    for row in range(plan.rows):
        for column in range(plan.columns):
            left, top = column * side, row * side
            yield _normalize(image.crop((left, top, left + side, top + side)), table)
    yield _normalize(_resize(image, Size(side, side), settings), table)


def normalized_levels(settings: ProcessorSettings) -> Pixels:
    """What each level becomes, float32 [3, 256]: rescaled in float64, normalized in float32."""
    levels = (np.arange(256, dtype=np.float64) * settings.rescale_factor).astype(np.float32)
    mean, std = (np.array(values, np.float32)[:, None] for values in (settings.mean, settings.std))
    normalized: Pixels = (levels - mean) / std
    return normalized


def to_patches(tiles: Pixels, patch: int) -> Pixels:
    """Tiles [tiles, 3, side, side] as patches [tiles, (side / patch) ** 2, 3 * patch * patch].

    Patches go row after row; within one, values lie as in the weight [out, 3, patch, patch] of a
    convolution over patches, which thereby is a linear layer.
    """
    count, channels, height, width = tiles.shape
    rows, columns = height // patch, width // patch
    assert (rows * patch, columns * patch) == (height, width)
    grid = tiles.reshape(count, channels, rows, patch, columns, patch)
    return grid.transpose(0, 2, 4, 1, 3, 5).reshape(count, rows * columns, -1)


def _resize(image: Image.Image, size: Size, settings: ProcessorSettings) -> Image.Image:
    return image.resize((size.width, size.height), settings.resample)


def _normalize(tile: Image.Image, table: Pixels) -> Pixels:
    levels = np.asarray(tile)
    return np.stack([table[channel][levels[..., channel]] for channel in range(3)])
