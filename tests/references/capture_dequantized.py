"""Captures transformers' float32 logits on the real GGUF files, dequantized.

Run by hand where torch, transformers, accelerate and gguf are installed, from the project's
folder, after `capture_llama_cpp`, whose prompts and tokens it follows:
    python -m tests.references.capture_dequantized SMOLLM2.gguf GEMMA3.gguf
It writes tests/references/data/dequantized.npz. For each prompt ``<model>/<n>`` and each of
llama.cpp's tokens: ``logits``, of `SAMPLED_EACH_TOKEN`, before the token; ``best``, the best token
there; and ``margins``, its lead over the second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.references.arrays import load_arrays, save_arrays
from tests.references.real_prompts import PROMPTS, SAMPLED_EACH_TOKEN

DATA = Path(__file__).parent / "data"


def main(smollm2: str, gemma3: str) -> Iterator[tuple[str, np.ndarray]]:
    captured = load_arrays(DATA / "llama_cpp.npz")
    for name, path in (("smollm2", Path(smollm2)), ("gemma3", Path(gemma3))):
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
        )
        for number in range(len(PROMPTS[name])):
            key = f"{name}/{number}"
            prompt, tokens = captured[f"{key}/prompt"], captured[f"{key}/tokens"]
            with torch.no_grad():
                ids = torch.tensor(np.concatenate([prompt, tokens[:-1]])[None])
                logits = model(ids).logits[0, len(prompt) - 1 :].numpy()
            ordered = np.sort(logits, axis=-1)
            yield f"{key}/logits", logits[:, list(SAMPLED_EACH_TOKEN)]
            yield f"{key}/best", logits.argmax(-1)
            yield f"{key}/margins", ordered[:, -1] - ordered[:, -2]


if __name__ == "__main__":
    save_arrays(DATA / "dequantized.npz", dict(main(*sys.argv[1:])))
    print("wrote dequantized.npz")
