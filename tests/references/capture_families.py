"""Captures the logits of the tiny checkpoints with transformers in float32.

Run by hand where torch and transformers are installed, from the project's folder:
    python -m tests.references.capture_families
It writes tests/references/data/families.npz: for each checkpoint of `tiny`, float32
[checked positions, vocab].
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.references import tiny
from tests.references.arrays import save_arrays

OUTPUT = Path(__file__).parent / "data" / "families.npz"


def capture(name: str) -> np.ndarray:
    with tempfile.TemporaryDirectory() as directory:
        tiny.write_checkpoint(name, Path(directory))
        model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, attn_implementation="eager"
        )
        with torch.no_grad():
            logits = model(torch.tensor([tiny.PROMPT])).logits[0]
    checked: np.ndarray = logits[list(tiny.CHECKED_POSITIONS)].numpy()
    return checked


if __name__ == "__main__":
    save_arrays(OUTPUT, {name: capture(name) for name in tiny.CONFIGS})
    print(f"wrote {OUTPUT.name}: {', '.join(tiny.CONFIGS)}")
