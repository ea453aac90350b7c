"""A model's own description of its image processor, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from PIL import Image

from caldrix.errors import Refusal
from caldrix.models.fields import Fields
from caldrix.vision.errors import UnsupportedProcessor
from caldrix.vision.settings import ProcessorSettings
from tests.references.vision_pictures import PREPROCESSOR_CONFIG

PROCESSOR_CONFIG = {"image_seq_len": 64, "processor_class": "Idefics3Processor"}
SMOLVLM = ProcessorSettings(
    tile_side=512,
    longest_edge=2048,
    resample=Image.Resampling.LANCZOS,
    rescale_factor=0.00392156862745098,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    tokens_per_tile=64,
)


def write(directory: Path, **files: Mapping[str, object]) -> Path:
    for name, content in files.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


def test_both_files(tmp_path: Path) -> None:
    write(tmp_path, preprocessor_config=PREPROCESSOR_CONFIG, processor_config=PROCESSOR_CONFIG)
    assert ProcessorSettings.from_directory(tmp_path) == SMOLVLM


def test_one_file(tmp_path: Path) -> None:
    together = {**PROCESSOR_CONFIG, "image_processor": PREPROCESSOR_CONFIG}
    write(tmp_path, processor_config=together)
    assert ProcessorSettings.from_directory(tmp_path) == SMOLVLM


def test_settings_that_change_nothing() -> None:
    config = {
        **PREPROCESSOR_CONFIG,
        "image_processor_type": "SmolVLMImageProcessorFast",
        "do_center_crop": False,
        "crop_size": None,
        "data_format": "channels_first",
        "return_row_col_info": True,
        "video_sampling": {"fps": 1},
    }
    assert ProcessorSettings.from_fields(Fields("file", config), 64) == SMOLVLM


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *(({key: None}, key) for key in PREPROCESSOR_CONFIG if key != "processor_class"),
        *(({key: False}, key) for key in PREPROCESSOR_CONFIG if key.startswith("do_")),
        ({"image_processor_type": "SiglipImageProcessor"}, "'SiglipImageProcessor', which is not"),
        ({"do_center_crop": True}, "do_center_crop is True"),
        ({"crop_size": 5}, "'crop_size' is a setting that is not supported"),
        ({"size": {"height": 512, "width": 512}}, "size must hold longest_edge alone"),
        ({"size": {"longest_edge": 5000}}, "at most 4096"),
        ({"size": {"longest_edge": 3584}}, "over 6 times max_image_size"),
        ({"max_image_size": {"longest_edge": 0}}, "not a whole number from 1"),
        ({"resample": 9}, "resample is 9, which is no filter"),
        ({"rescale_factor": 0}, "not a positive number"),
        ({"image_mean": [0.5, 0.5]}, "not three numbers"),
        ({"image_mean": [0.5, 0.5, "0.5"]}, "not three numbers"),
        ({"image_mean": [0.5, 0.5, True]}, "not three numbers"),
        ({"image_std": [0.5, 0.5, 0]}, "not three positive numbers"),
        ({"image_std": [1e-300, 0.5, 0.5]}, "what no 32-bit float holds"),
        ({"rescale_factor": 1e300}, "what no 32-bit float holds"),
    ],
)
def test_refused(change: Mapping[str, object], words: str) -> None:
    fields = Fields("preprocessor_config.json", {**PREPROCESSOR_CONFIG, **change})
    with pytest.raises(Refusal, match=words):
        ProcessorSettings.from_fields(fields, 64)


@pytest.mark.parametrize("missing", ["preprocessor_config", "processor_config"])
def test_a_missing_file(tmp_path: Path, missing: str) -> None:
    both = {"preprocessor_config": PREPROCESSOR_CONFIG, "processor_config": PROCESSOR_CONFIG}
    write(tmp_path, **{name: content for name, content in both.items() if name != missing})
    with pytest.raises(Refusal, match=f"{missing}.json is missing"):
        ProcessorSettings.from_directory(tmp_path)


def test_tokens_per_tile_are_not_guessed(tmp_path: Path) -> None:
    write(tmp_path, preprocessor_config=PREPROCESSOR_CONFIG, processor_config={})
    with pytest.raises(Refusal, match=r"processor_config.json lacks image_seq_len"):
        ProcessorSettings.from_directory(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"processor_class": "LlavaProcessor"},
            "processor_class is 'LlavaProcessor', which is not",
        ),
        ({"tiles": 3}, "'tiles' is a setting that is not supported"),
    ],
)
def test_another_processor_is_refused(
    change: Mapping[str, object], words: str, tmp_path: Path
) -> None:
    write(
        tmp_path,
        preprocessor_config=PREPROCESSOR_CONFIG,
        processor_config={**PROCESSOR_CONFIG, **change},
    )
    with pytest.raises(Refusal, match=words):
        ProcessorSettings.from_directory(tmp_path)


def test_the_tower_must_fit() -> None:
    SMOLVLM.check_tower(image_size=512, tokens_per_tile=64)
    for image_size, tokens, words in (
        (384, 64, "preprocessor_config.json: max_image_size is 512, and the .* has 384"),
        (512, 81, "processor_config.json: image_seq_len is 64, and the .* has 81"),
    ):
        with pytest.raises(UnsupportedProcessor, match=words):
            SMOLVLM.check_tower(image_size=image_size, tokens_per_tile=tokens)
