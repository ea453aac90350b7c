"""Captures features and logits of the tiny checkpoints that see, with transformers in float32.

Run by hand where torch and transformers are installed, from the project's folder:
    python -m tests.references.capture_smolvlm
It writes tests/references/data/smolvlm.npz: for each checkpoint of `tiny_vision`, the features of
its tiles ``[tiles, tokens, width]`` and logits ``[checked positions, vocab]``; and ``places``,
``[sides, longest side]``: the interval that each coordinate of a whole tile falls into, by side,
-1 past the side.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoModelForImageTextToText, Idefics3VisionConfig

from tests.references import tiny_vision
from tests.references.arrays import save_arrays

OUTPUT = Path(__file__).parent / "data" / "smolvlm.npz"


def capture(name: str) -> dict[str, np.ndarray]:
    with tempfile.TemporaryDirectory() as directory:
        tiny_vision.write_checkpoint(name, Path(directory))
        model = AutoModelForImageTextToText.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
    pixels = torch.from_numpy(tiny_vision.tiles(name))[None]
    tokens = torch.tensor([tiny_vision.prompt(name)])
    with torch.no_grad():
        features = torch.stack(
            [model.model.get_image_features(pixels[:, [index]]).pooler_output[0]
             for index in range(pixels.shape[1])]
        )  # fmt: skip
        logits = model(input_ids=tokens, pixel_values=pixels).logits[0]
    checked = logits[list(tiny_vision.CHECKED_POSITIONS)]
    return {f"{name}-features": features.numpy(), f"{name}-logits": checked.numpy()}


def places(side: int) -> np.ndarray:
    """The intervals of a whole tile's rows, seen through what the position table is asked for."""
    config = Idefics3VisionConfig(
        hidden_size=1, num_attention_heads=1, num_hidden_layers=1, image_size=side, patch_size=1
    )
    embeddings = AutoModel.from_config(config).embeddings
    asked: list[torch.Tensor] = []
    embeddings.position_embedding.register_forward_hook(
        lambda module, inputs, output: asked.append(inputs[0])
    )
    with torch.no_grad():
        embeddings(torch.zeros(1, 3, side, side), torch.ones(1, side, side, dtype=torch.bool))
    ids = asked[0].reshape(side, side)
    row = ids[0] - ids[0, 0]
    column = ids[:, 0] - ids[0, 0]
    assert torch.equal(column, side * row)
    found = np.full(max(tiny_vision.SIDES), -1, np.int8)
    found[:side] = row.numpy()
    return found


if __name__ == "__main__":
    arrays: dict[str, np.ndarray] = {}
    for name in tiny_vision.CONFIGS:
        arrays |= capture(name)
    arrays["places"] = np.stack([places(side) for side in tiny_vision.SIDES])
    save_arrays(OUTPUT, arrays)
    print(f"wrote {OUTPUT.name}: {', '.join(arrays)}")
