"""Tiles and prompts against the reference processor's (see tests/references/capture_vision.py)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from attrs import astuple, evolve

from caldrix.models.fields import Fields
from caldrix.text.tokenizer import Tokenizer
from caldrix.vision.layout import ImageLayout
from caldrix.vision.parts import Detail
from caldrix.vision.processor import ImageProcessor
from caldrix.vision.settings import ProcessorSettings
from caldrix.vision.tiling import Size, plan_tiles
from tests.references import vision_pictures as pictures
from tests.references.arrays import load_arrays
from tests.support.image_files import sent

DATA = Path(pictures.__file__).parent / "data"
SETTINGS = ProcessorSettings.from_fields(
    Fields("preprocessor_config.json", pictures.PREPROCESSOR_CONFIG), pictures.TOKENS_PER_TILE
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    pictures.tokenizer().save(str(directory / "tokenizer.json"))
    return Tokenizer.from_directory(directory)


@pytest.fixture(scope="module")
def processor(tokenizer: Tokenizer) -> ImageProcessor:
    return ImageProcessor(SETTINGS, ImageLayout.for_tokenizer(tokenizer, pictures.TOKENS_PER_TILE))


@cache
def captured() -> dict[str, np.ndarray]:
    return load_arrays(DATA / "vision.npz")


@cache
def captured_json() -> dict[str, dict[str, list[int]]]:
    loaded: dict[str, dict[str, list[int]]] = json.loads((DATA / "vision.json").read_text())
    return loaded


@pytest.mark.parametrize("detail", ["high", "low"])
@pytest.mark.parametrize("name", pictures.PICTURES)
def test_pixels(processor: ImageProcessor, name: str, detail: str) -> None:
    """Equal, but for what another machine's sine may do to a rounding of the filter's weights."""
    image = sent(pictures.PICTURES[name](), detail=detail)
    tiles = np.stack(list(processor.tiles(image)))
    key = f"{name} {detail}"
    assert tiles.dtype == np.float32
    assert tiles.shape == tuple(captured()[f"{key} shape"])
    off = np.abs(pictures.sample(tiles) - captured()[f"{key} samples"])
    one_level = 2 / 255
    assert off.max() < one_level * 1.01
    assert np.count_nonzero(off) <= pictures.SAMPLES // 100
    means = tiles.mean(axis=(2, 3), dtype=np.float64)
    np.testing.assert_allclose(means, captured()[f"{key} means"], atol=one_level / 100)
    plan = processor.plan(image)
    assert [plan.rows, plan.columns] == captured_json()["grids"][key]
    assert plan.tiles == len(tiles)


@pytest.mark.parametrize("longest_edge", pictures.PLANNED_EDGES)
def test_plans(longest_edge: int) -> None:
    settings = evolve(SETTINGS, longest_edge=longest_edge)
    plans = [plan_tiles(Size(*size), Detail.HIGH, settings) for size in pictures.PLANNED_SIZES]
    sizes = [[*astuple(plan.resized), *astuple(plan.canvas)] for plan in plans]
    assert sizes == captured()[f"plans {longest_edge}"].tolist()


@pytest.mark.parametrize("detail", list(Detail))
def test_prompt(processor: ImageProcessor, detail: Detail) -> None:
    plans = [plan_tiles(Size(*size), detail, SETTINGS) for size in pictures.PROMPT_SIZES]
    ids = processor.layout.encode(pictures.PROMPT, plans)
    assert ids == captured_json()["prompts"][detail.value]
    features = ids.count(processor.layout.image_token_id)
    assert features == sum(plan.tiles for plan in plans) * pictures.TOKENS_PER_TILE


def test_levels_are_normalized() -> None:
    np.testing.assert_allclose(
        SETTINGS.normalized_levels()[1, [0, 51, 255]], [-1, -0.6, 1], rtol=1e-6
    )
