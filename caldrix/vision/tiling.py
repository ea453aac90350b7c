"""How an image is resized and split, from its width and height alone.

After SmolVLM's processor (transformers, `Idefics3ImageProcessorPil`), with its own roundings and in
its own floating point: the longer side becomes longest_edge; then both become multiples of the
tile's side, which the tiles are cut from; one more tile shows the whole. An image at low detail, or
one that fits a tile, is that one alone.
"""

from __future__ import annotations

from math import ceil

from attrs import frozen

from caldrix.vision.parts import Detail
from caldrix.vision.settings import ProcessorSettings


@frozen
class Size:
    """Width and height in pixels."""

    width: int
    height: int


@frozen
class TilePlan:
    """The sizes that an image of ``source``'s takes on its way to tiles, and the tiles' grid.

    ``rows`` and ``columns`` are 0 for an image that is not split.
    """

    source: Size
    resized: Size
    canvas: Size
    rows: int
    columns: int

    @property
    def tiles(self) -> int:
        """The tiles of the grid, and the one of the whole image."""
        return self.rows * self.columns + 1


def plan_tiles(source: Size, detail: Detail, settings: ProcessorSettings) -> TilePlan:
    """The plan for an upright image of ``source``'s size."""
    side = settings.tile_side
    resized = _fit_longest(source, settings.longest_edge)
    canvas = Size(side, side) if detail is Detail.LOW else _round_up(resized, side)
    if canvas == Size(side, side):
        return TilePlan(source, resized, canvas, 0, 0)
    return TilePlan(source, resized, canvas, canvas.height // side, canvas.width // side)


def _fit_longest(size: Size, longest: int) -> Size:
    """The longer side as ``longest``, the other in proportion: even unless it is 1."""
    aspect = size.width / size.height
    if size.width >= size.height:
        return Size(longest, _at_least_one(_even(int(longest / aspect))))
    return Size(_at_least_one(_even(int(longest * aspect))), longest)


def _even(length: int) -> int:
    return length + length % 2


def _at_least_one(length: int) -> int:
    return max(length, 1)


def _round_up(size: Size, side: int) -> Size:
    """Both sides as multiples of ``side``: the longer rounded up, the other in proportion first."""
    aspect = size.width / size.height
    if size.width >= size.height:
        width = ceil(size.width / side) * side
        return Size(width, ceil(int(width / aspect) / side) * side)
    height = ceil(size.height / side) * side
    return Size(ceil(int(height * aspect) / side) * side, height)
