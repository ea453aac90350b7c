"""A model's image processor as its files describe it, read strictly.

preprocessor_config.json says how pixels are prepared and processor_config.json how many tokens
stand for a tile; newer processors keep the first within the second. Only what SmolVLM's processor
does is built: a file that asks for anything else is refused, by the name of the setting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from attrs import frozen
from PIL import Image

from caldrix.errors import quoted
from caldrix.models.fields import Fields
from caldrix.vision.errors import UnsupportedProcessor
from caldrix.vision.header import MAX_SIDE
from caldrix.weights.directory import CONFIG, ModelDirectory
from caldrix.weights.tensor import Float32

PREPROCESSOR_CONFIG = "preprocessor_config.json"
PROCESSOR_CONFIG = "processor_config.json"
MOST_TILES_IN_A_ROW = 6
"""Markers of rows and columns end there."""

_PROCESSORS = ("Idefics3ImageProcessor", "SmolVLMImageProcessor")
_REQUIRED: Mapping[str, tuple[object, ...]] = {
    "image_processor_type": tuple(
        name + suffix for name in _PROCESSORS for suffix in ("", "Fast", "Pil")
    ),
    **dict.fromkeys(
        (
            "do_convert_rgb",
            "do_resize",
            "do_image_splitting",
            "do_rescale",
            "do_normalize",
            "do_pad",
        ),
        (True,),
    ),
}
"""What must be there, at one of these values."""
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "do_center_crop": (False,),
    "return_row_col_info": (False, True),
    "data_format": ("channels_first",),
    "default_to_square": (False, True),
}
"""What may be there, at one of these values that change nothing."""
_READ = frozenset(
    {"size", "max_image_size", "resample", "rescale_factor", "image_mean", "image_std"}
)
_PASSED_OVER = frozenset({"processor_class", "video_sampling"})
_PROCESSOR_CLASSES = ("Idefics3Processor", "SmolVLMProcessor")
_PROCESSOR_KEYS = frozenset(
    {"image_seq_len", "processor_class", "image_processor", "video_processor", "chat_template"}
)
"""Of processor_config.json; a film's processor and a copy of the template are not needed."""


@frozen
class ProcessorSettings:
    """How images are resized, split and normalized.

    A pixel's level v, 0 to 255, of channel c becomes (v * rescale_factor - mean[c]) / std[c].
    """

    tile_side: int
    """Pixels along each side of a tile."""
    longest_edge: int
    """Pixels along the longer side of an image before it is split."""
    resample: Image.Resampling
    rescale_factor: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    tokens_per_tile: int

    @classmethod
    def from_directory(cls, path: Path) -> ProcessorSettings:
        """Reads a model directory. Raises UnsupportedProcessor, UnsupportedModel or CorruptFile."""
        directory = ModelDirectory(path)
        outer = Fields(str(path / PROCESSOR_CONFIG), directory.read_json(PROCESSOR_CONFIG))
        if "image_processor" in outer:
            inner = outer.section("image_processor")
        else:
            inner = Fields(
                str(path / PREPROCESSOR_CONFIG), directory.read_json(PREPROCESSOR_CONFIG)
            )
        _check_processor(outer)
        return cls.from_fields(inner, outer.integer("image_seq_len"))

    @classmethod
    def from_fields(cls, fields: Fields, tokens_per_tile: int) -> ProcessorSettings:
        """Reads preprocessor_config.json. Raises UnsupportedProcessor or UnsupportedModel."""
        _check_keys(fields)
        side, longest = (_longest_edge(fields, key) for key in ("max_image_size", "size"))
        if longest > MOST_TILES_IN_A_ROW * side:
            raise UnsupportedProcessor(
                f"{fields.where}: size is over {MOST_TILES_IN_A_ROW} times max_image_size; more"
                " tiles in a row have no markers"
            )
        settings = cls(
            tile_side=side,
            longest_edge=longest,
            resample=_resampling(fields),
            rescale_factor=fields.number("rescale_factor"),
            mean=_channels(fields, "image_mean"),
            std=_channels(fields, "image_std", positive=True),
            tokens_per_tile=tokens_per_tile,
        )
        if not np.isfinite(settings.normalized_levels()).all():
            raise UnsupportedProcessor(
                f"{fields.where}: rescale_factor, image_mean and image_std make of some pixels what"
                " no 32-bit float holds; fetch the model's files again"
            )
        return settings

    def normalized_levels(self) -> Float32:
        """What each level becomes, float32 [3, 256]: rescaled in float64, normalized in float32."""
        with np.errstate(all="ignore"):
            levels = (np.arange(256, dtype=np.float64) * self.rescale_factor).astype(np.float32)
            mean, std = (np.array(each, np.float32)[:, None] for each in (self.mean, self.std))
            normalized: Float32 = (levels - mean) / std
        return normalized

    def check_tower(self, *, image_size: int, tokens_per_tile: int) -> None:
        """Raises UnsupportedProcessor unless the vision tower takes and gives just this."""
        for file, key, ours, theirs in (
            (PREPROCESSOR_CONFIG, "max_image_size", self.tile_side, image_size),
            (PROCESSOR_CONFIG, "image_seq_len", self.tokens_per_tile, tokens_per_tile),
        ):
            if ours != theirs:
                raise UnsupportedProcessor(
                    f"{file}: {key} is {ours}, and the vision tower of {CONFIG} has {theirs}; fetch"
                    " the model's files again"
                )


def _check_processor(fields: Fields) -> None:
    """Of processor_config.json: whose it is, and nothing in it that would go unread."""
    fields.require("processor_class", *_PROCESSOR_CLASSES)
    for key, value in fields.values.items():
        if value is not None and key not in _PROCESSOR_KEYS:
            raise UnsupportedProcessor(
                f"{fields.where}: {quoted(key)} is a setting that is not supported"
            )


def _check_keys(fields: Fields) -> None:
    for key, allowed in _REQUIRED.items():
        if key not in fields:
            raise UnsupportedProcessor(f"{fields.where} lacks {key}; fetch the model again")
        fields.require(key, *allowed)
    for key, value in fields.values.items():
        if key in _NEUTRAL:
            fields.require(key, *_NEUTRAL[key])
        elif value is not None and key not in _READ | _PASSED_OVER | _REQUIRED.keys():
            raise UnsupportedProcessor(
                f"{fields.where}: {quoted(key)} is a setting that is not supported"
            )


def _longest_edge(fields: Fields, key: str) -> int:
    size = fields.section(key)
    if set(size.values) != {"longest_edge"}:
        raise UnsupportedProcessor(f"{fields.where}: {key} must hold longest_edge alone")
    edge = size.integer("longest_edge")
    if edge > MAX_SIDE:
        raise UnsupportedProcessor(
            f"{size.where}: longest_edge is {edge}, and at most {MAX_SIDE} is supported"
        )
    return edge


def _resampling(fields: Fields) -> Image.Resampling:
    code = fields.integer("resample", least=0)
    try:
        return Image.Resampling(code)
    except ValueError:
        raise UnsupportedProcessor(
            f"{fields.where}: resample is {code}, which is no filter of Pillow's"
        ) from None


def _channels(fields: Fields, key: str, *, positive: bool = False) -> tuple[float, float, float]:
    values = fields.values.get(key)
    if isinstance(values, list) and len(values) == 3 and all(map(_is_number, values)):
        red, green, blue = map(float, values)
        if not positive or min(red, green, blue) > 0:
            return red, green, blue
    expected = "positive numbers" if positive else "numbers"
    raise UnsupportedProcessor(
        f"{fields.where}: {key} is {quoted(values)}, not three {expected}, one a channel"
    )


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e6 and math.isfinite(value)
