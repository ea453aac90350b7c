"""Pixels of an image file, as RGB and upright.

Pillow decodes, with the decoder of the named type alone, and none of its global settings is
touched: several threads may decode at a time. What is right is what SmolVLM's own image processor
makes of a picture: transparency shows white, colours are converted without their profile. Its
Pillow is corrected in one place: 16-bit greys keep their upper 8 bits rather than turn white.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO

import numpy as np
from PIL import Image

from caldrix.vision.errors import InvalidImage
from caldrix.vision.header import UPRIGHT, damaged
from caldrix.vision.parts import EncodedImage, MediaType

_DECODERS: Mapping[MediaType, str] = {
    MediaType.PNG: "PNG",
    MediaType.JPEG: "JPEG",
    MediaType.WEBP: "WEBP",
}
_TURNS: Mapping[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What makes an image of each orientation upright (EXIF 2.32, tag 0x0112)."""
_BAND_ROWS = 256


def decode(image: EncodedImage) -> Image.Image:
    """The image in mode RGB, upright, of the size that its header promised.

    Of an animation it is the first picture. Raises InvalidImage for whatever the decoder does not
    take; MemoryError escapes, as it is no fault of the file's.
    """
    file = image.file
    try:
        with Image.open(BytesIO(file.data), formats=[_DECODERS[image.media_type]]) as opened:
            if opened.size != (file.stored_width, file.stored_height):
                raise damaged("its header and its picture are of different sizes")
            opened.load()
            decoded = _to_rgb(opened)
    except (InvalidImage, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a damaged file makes them stumble over
        raise InvalidImage(
            f"the image cannot be decoded as {image.media_type.value}: it is damaged or ends early;"
            " send it whole"
        ) from error
    if file.orientation == UPRIGHT:
        return decoded
    return decoded.transpose(_TURNS[file.orientation])


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I;16"):
        image = _from_16_bits(image)
    if image.has_transparency_data:
        return _on_white(image)
    # To convert it would copy it.
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_16_bits(image: Image.Image) -> Image.Image:
    """Greys of 16 bits as 8, with an alpha channel if one of them is transparent."""
    values = np.asarray(image)
    grey = Image.fromarray((values >> 8).astype(np.uint8))
    key = image.info.get("transparency")
    if key is None:
        return grey
    alpha = Image.fromarray(np.where(values == key, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))


def _on_white(image: Image.Image) -> Image.Image:
    """The image over white, band after band so that no whole copies are needed."""
    flat = Image.new("RGB", image.size)
    for top in range(0, image.height, _BAND_ROWS):
        box = (0, top, image.width, min(top + _BAND_ROWS, image.height))
        band = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", band.size, "white")
        flat.paste(Image.alpha_composite(white, band).convert("RGB"), box)
    return flat
