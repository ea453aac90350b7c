"""Captures what transformers' image processor makes of the pictures of `vision_pictures`.

Run by hand where torch, transformers and Pillow are installed, from the project's folder:
    python -m tests.references.capture_vision
It writes tests/references/data/vision.npz: for each picture at each detail, the shape of the
pixel values, samples of them and each tile's means, float64 [tiles, 3]; and vision.json: the grids,
and the tokens of a prompt. It is the processor's Pillow form that is captured. Where torchvision
0.27 or newer is installed, transformers takes its torchvision form instead, which resamples on its
own: on such pictures up to 5 % of the values are one to three levels of 256 off, and where a
picture of noise is made much smaller, a quarter of them, by up to 14.
"""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from transformers import Idefics3ImageProcessorPil, Idefics3Processor, PreTrainedTokenizerFast
from transformers.image_utils import SizeDict
from transformers.models.idefics3.image_processing_pil_idefics3 import get_resize_output_image_size

from tests.references.arrays import save_arrays
from tests.references.vision_pictures import (
    PICTURES,
    PLANNED_EDGES,
    PLANNED_SIZES,
    PREPROCESSOR_CONFIG,
    PROMPT,
    PROMPT_SIZES,
    TOKENS_PER_TILE,
    levels,
    sample,
    tokenizer,
)

DATA = Path(__file__).parent / "data"
DETAILS = ("high", "low")


class Planner(Idefics3ImageProcessorPil):  # type: ignore[misc]  # of no type that mypy knows
    """The processor on pictures that have a size and no memory; it keeps the sizes they take."""

    def __init__(self, longest_edge: int) -> None:
        super().__init__(**{**PREPROCESSOR_CONFIG, "size": {"longest_edge": longest_edge}})
        self.sizes: list[int] = []

    def resize(self, image: np.ndarray, size: SizeDict, **_: object) -> np.ndarray:
        height, width = (
            get_resize_output_image_size(image, size.longest_edge)
            if size.longest_edge
            else (size.height, size.width)
        )
        self.sizes += [width, height]
        return empty(width, height)

    def plan(self, width: int, height: int) -> list[int]:
        """Width and height once resized, and of the canvas."""
        self.sizes = []
        resized = self.resize(empty(width, height), self.size)
        self.resize_for_vision_encoder(resized, 512)
        return self.sizes


def empty(width: int, height: int) -> NDArray[np.uint8]:
    return np.broadcast_to(np.uint8(0), (3, height, width))


def main() -> None:
    processor = Idefics3ImageProcessorPil(**PREPROCESSOR_CONFIG)
    arrays: dict[str, np.ndarray] = {
        f"plans {edge}": np.array([Planner(edge).plan(*size) for size in PLANNED_SIZES], np.int16)
        for edge in PLANNED_EDGES
    }
    grids: dict[str, list[int]] = {}
    for name, make in PICTURES.items():
        image = Image.open(BytesIO(make()))
        for detail in DETAILS:
            seen = processor(
                [[image]],
                do_image_splitting=detail == "high",
                return_row_col_info=True,
                return_tensors="np",
            )
            values = np.asarray(seen["pixel_values"][0], np.float32)
            key = f"{name} {detail}"
            arrays[f"{key} shape"] = np.array(values.shape)
            arrays[f"{key} samples"] = sample(values)
            arrays[f"{key} means"] = values.mean(axis=(2, 3), dtype=np.float64)
            grids[key] = [seen["rows"][0][0], seen["cols"][0][0]]
    save_arrays(DATA / "vision.npz", arrays)
    together = Idefics3Processor(
        processor,
        PreTrainedTokenizerFast(tokenizer_object=tokenizer()),
        image_seq_len=TOKENS_PER_TILE,
    )
    images = [Image.fromarray(levels(*size, 3)) for size in PROMPT_SIZES]
    prompts = {
        detail: together(text=PROMPT, images=images, do_image_splitting=detail == "high")[
            "input_ids"
        ][0]
        for detail in DETAILS
    }
    (DATA / "vision.json").write_text(json.dumps({"grids": grids, "prompts": prompts}) + "\n")
    print(f"wrote vision.npz and vision.json: {len(grids)} pictures")


if __name__ == "__main__":
    main()
