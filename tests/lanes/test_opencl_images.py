"""A model that sees on the OpenCL lanes: the processor looks, and the device answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from caldrix.cli.main import execute
from caldrix.models.lane import Features, LaneUnavailable, Slice
from caldrix.models.loading import TextModel, load_model
from caldrix_cpu.lane import CpuLane
from caldrix_opencl.lane import HostLane
from tests.references import tiny_vision
from tests.support.compiled import Array
from tests.support.image_files import saved
from tests.support.opencl import require_device
from tests.support.tiny_model import write_tiny_model
from tests.support.tiny_vision_model import write_vision_model
from tests.support.told import Told

TOKENS = np.array([1, 2, 3, 4, 5, 6, 7], np.int64)


def logits_of(model: TextModel) -> tuple[Array, Array]:
    """A tile's features, and the logits of a prompt that they stand in."""
    assert model.vision is not None
    features = model.vision.encode(tiny_vision.tiles("idefics3")[0])
    seen = Features(np.arange(2, 2 + len(features)), features)
    return features, model.executor.step([Slice(0, 0, TOKENS, len(TOKENS), seen)]).copy()


def test_the_processor_looks_and_the_device_answers(tmp_path: Path) -> None:
    require_device()
    write_tiny_model(tmp_path, "idefics3")
    told = Told()
    with load_model(tmp_path, lane=CpuLane(), kv_dtype="f32") as model:
        expected_features, expected = logits_of(model)
    with load_model(tmp_path, lane=HostLane(), kv_dtype="f32", progress=told) as model:
        features, logits = logits_of(model)
    np.testing.assert_array_equal(features, expected_features)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
    assert told.notes == [
        "images are looked at by the processor: the host lane computes the text model"
    ]
    with (
        pytest.raises(LaneUnavailable, match="the host lane has no --threads, and 2 was asked"),
        load_model(tmp_path, lane=HostLane(), threads=2),
    ):
        pass


def test_a_tiny_model_with_eyes_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    require_device()
    checkpoint = write_vision_model(tmp_path / "eyes", context=4096)
    image = tmp_path / "wide.png"
    image.write_bytes(saved(Image.new("RGB", (64, 32), "red"), "PNG"))
    command = ["run", str(checkpoint), "-p", "What is it?", "--image", str(image)]
    assert execute([*command, "--backend", "host", "--max-tokens", "6"]) == 0
    said = capsys.readouterr()
    assert len(said.out) > 1
    assert "images are looked at by the processor" in said.err
