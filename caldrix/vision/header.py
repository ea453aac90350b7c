"""What is known of an image file before any of its pixels is decoded."""

from __future__ import annotations

from attrs import field, frozen

from caldrix.vision.errors import InvalidImage

MAX_SIDE = 4096
"""The most pixels in an image's width or height."""

MAX_PIECES = 65536
"""The most chunks or segments in one file: each costs time, and no encoder writes so many."""

UPRIGHT = 1
_LYING = frozenset({5, 6, 7, 8})


@frozen
class ImageFile:
    """An image file as it goes to the decoder: only what its pixels depend on is left in it.

    ``stored_width`` and ``stored_height`` are the header's, in pixels; ``orientation`` is EXIF's,
    from 1 (upright) to 8.
    """

    stored_width: int
    stored_height: int
    orientation: int
    data: bytes = field(repr=False)

    @property
    def width(self) -> int:
        """Pixels across the upright image."""
        return self.stored_height if self.orientation in _LYING else self.stored_width

    @property
    def height(self) -> int:
        """Pixels down the upright image."""
        return self.stored_width if self.orientation in _LYING else self.stored_height


def check_sides(width: int, height: int) -> None:
    """Raises InvalidImage unless both sides are within 1 to MAX_SIDE pixels."""
    if not width or not height:
        raise InvalidImage(f"the image has no pixels: its header says {width} x {height}")
    if max(width, height) > MAX_SIDE:
        raise InvalidImage(
            f"the image is {width} x {height} pixels; a side may have at most {MAX_SIDE}, so send"
            " a smaller one"
        )


def damaged(what: str) -> InvalidImage:
    """The refusal of a file that is not as its type's standard has it."""
    return InvalidImage(f"the image is damaged: {what}; send it whole")


def too_many_pieces(kind: str) -> InvalidImage:
    """The refusal of a file in more pieces than MAX_PIECES."""
    return InvalidImage(f"the image has more than {MAX_PIECES} {kind}; save it anew")
