"""What can be wrong with the images of a request, or with a model's description of its own."""

from __future__ import annotations

from caldrix.errors import CaldrixError, Refusal


class InvalidImage(CaldrixError):
    """An image part, its URL or the file in it cannot be taken; the sentence says why."""


class TooManyImages(CaldrixError):
    """A request holds more images than it may."""


class PlaceholderCount(CaldrixError):
    """A prompt holds the image token more or less often than there are images."""


class UnsupportedProcessor(Refusal):
    """A model's image processor is described wrongly, or asks for what is not built."""
