"""Captures llama.cpp's greedy answers and logits on the real GGUF files.

Run by hand where llama-cpp-python is installed, from the project's folder:
    python -m tests.references.capture_llama_cpp SMOLLM2.gguf GEMMA3.gguf
It writes tests/references/data/llama_cpp.npz. For each prompt ``<model>/<n>``: ``prompt`` and
``tokens`` are ids; ``margins`` are the gaps between the two best logits before each token; and
``logits`` are those of `SAMPLED` vocabulary entries after the prompt.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from llama_cpp import Llama

from tests.references.arrays import save_arrays
from tests.references.real_prompts import NEW_TOKENS, PROMPTS, SAMPLED

OUTPUT = Path(__file__).parent / "data" / "llama_cpp.npz"


def capture(model: Llama, text: str, *, add_bos: bool) -> dict[str, np.ndarray]:
    prompt = model.tokenize(text.encode(), add_bos=add_bos, special=True)
    model.reset()
    model.eval(prompt)
    first = last_logits(model)
    tokens, margins = [], []
    for _ in range(NEW_TOKENS):
        logits = last_logits(model)
        second, best = np.partition(logits, -2)[-2:]
        tokens.append(int(logits.argmax()))
        margins.append(best - second)
        if tokens[-1] == model.token_eos():
            break
        model.eval(tokens[-1:])
    return {
        "prompt": np.array(prompt),
        "tokens": np.array(tokens),
        "margins": np.array(margins, np.float32),
        "logits": first[list(SAMPLED)],
    }


def last_logits(model: Llama) -> np.ndarray:
    return np.array(model.scores[model.n_tokens - 1], np.float32)


def main(smollm2: str, gemma3: str) -> Iterator[tuple[str, np.ndarray]]:
    for name, path in (("smollm2", smollm2), ("gemma3", gemma3)):
        model = Llama(path, n_ctx=512, logits_all=True, verbose=False, n_threads=2)
        for number, text in enumerate(PROMPTS[name]):
            for key, values in capture(model, text, add_bos=name == "gemma3").items():
                yield f"{name}/{number}/{key}", values


if __name__ == "__main__":
    save_arrays(OUTPUT, dict(main(*sys.argv[1:])))
    print(f"wrote {OUTPUT.name}")
