"""The pictures, the settings and the tokenizer that preprocessing is compared with, made here.

Pictures are noise and waves at once, from whole numbers alone: every filter and every rounding of a
size shows in them, and every machine makes the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from io import BytesIO

import numpy as np
import tokenizers
from numpy.typing import NDArray
from PIL import Image
from tokenizers import AddedToken, decoders, models, pre_tokenizers

PREPROCESSOR_CONFIG: Mapping[str, object] = {
    "do_convert_rgb": True,
    "do_image_splitting": True,
    "do_normalize": True,
    "do_pad": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Idefics3ImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "max_image_size": {"longest_edge": 512},
    "processor_class": "Idefics3Processor",
    "resample": 1,
    "rescale_factor": 0.00392156862745098,
    "size": {"longest_edge": 2048},
}
"""What SmolVLM-256M-Instruct's preprocessor_config.json says."""

TOKENS_PER_TILE = 3
"""Few enough for whole prompts to be kept; the model has 64."""

SIZES = (
    (1, 1),
    (2, 4096),
    (4096, 2),
    (640, 480),
    (480, 640),
    (1100, 700),
    (512, 512),
    (513, 511),
    (37, 911),
    (1023, 1025),
)
"""Width and height."""

PLANNED_SIZES = [(1 + index * 2243 % 4096, 1 + index * index * 37 % 4096) for index in range(200)]
"""Width and height of pictures whose plans alone are compared."""
PLANNED_EDGES = (2048, 1000)
"""The settings of longest_edge that they are planned with; the second is no multiple of a tile."""

PROMPT = "Look: <image> and<image>\nWhat is it?"
PROMPT_SIZES = ((1100, 700), (64, 64))

SAMPLES = 512


def levels(width: int, height: int, channels: int) -> NDArray[np.uint8]:
    """A picture, uint8 [height, width, channels]."""
    y, x = np.mgrid[0:height, 0:width].astype(np.uint32)
    planes = [
        (x * (5 + channel) + y * 3 >> 2) ^ ((x * 2654435761 + y * 40503 + channel) >> 13) % 97
        for channel in range(channels)
    ]
    return np.stack(planes, axis=-1).astype(np.uint8)


def _png(image: Image.Image) -> bytes:
    buffer = BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _of_mode(mode: str) -> bytes:
    channels = len(Image.new(mode, (1, 1)).getbands())
    values = levels(90, 60, channels)
    return _png(Image.fromarray(values if channels > 1 else values[..., 0], mode=mode))


def _palette() -> bytes:
    image = Image.fromarray(levels(90, 60, 1)[..., 0] & 15)
    image.putpalette(levels(16, 1, 3).tobytes())
    buffer = BytesIO()
    image.save(buffer, "PNG", transparency=bytes(range(0, 256, 16)))
    return buffer.getvalue()


def _sized(width: int, height: int) -> bytes:
    return _png(Image.fromarray(levels(width, height, 3)))


def _largest() -> bytes:
    """4096 x 4096 pixels, in squares of 8: a file within the limit."""
    small = levels(512, 512, 3)
    return _png(Image.fromarray(small.repeat(8, axis=0).repeat(8, axis=1)))


PICTURES: Mapping[str, Callable[[], bytes]] = {
    **{f"{width}x{height}": partial(_sized, width, height) for width, height in SIZES},
    **{mode: partial(_of_mode, mode) for mode in ("L", "LA", "RGBA")},
    "P": _palette,
    "largest": _largest,
}
"""PNG files by name."""


def sample(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """SAMPLES values of ``values``, spread over all of it."""
    flat = values.reshape(-1)
    return flat[np.arange(SAMPLES, dtype=np.int64) * 1_000_003 % flat.size]


def tokenizer() -> tokenizers.Tokenizer:
    """A byte-level tokenizer with SmolVLM's tokens for images, and one token for two newlines."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    newline = "Ċ"
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, newline * 2])}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[(newline, newline)]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    markers = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    special = ["<|im_start|>", "<end_of_utterance>", "<global-img>", *markers]
    special += ["<fake_token_around_image>", "<image>"]
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return made
