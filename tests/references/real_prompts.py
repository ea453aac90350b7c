"""The prompts that references on real weights were captured for."""

from __future__ import annotations

import numpy as np

NEW_TOKENS = 24
SAMPLED = tuple(
    int(token) for token in np.random.Generator(np.random.PCG64(0)).choice(49_152, 512, False)
)
"""Vocabulary entries whose logits are compared: enough for a norm, few enough to store."""
SAMPLED_EACH_TOKEN = SAMPLED[:64]
"""Those compared at every token of an answer."""

_SYSTEM = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
    "trained by Hugging Face<|im_end|>\n"
)


def _chat(question: str) -> str:
    return f"{_SYSTEM}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


PROMPTS = {
    "smollm2": (
        _chat("What is the capital of France?"),
        _chat("Write one sentence about the sea."),
        _chat("Name three primary colours."),
        _chat("What is 2 + 2? Answer with a number."),
        _chat("Translate 'good morning' into Spanish."),
        _chat("Who wrote Romeo and Juliet?"),
        "The capital of France is",
        "def fibonacci(n):\n",
        "Once upon a time, in a small village by the river,",
        "Water boils at",
    ),
    "gemma3": (
        "The capital of France is",
        "Once upon a time",
        "1, 2, 3, 4, 5,",
        "Die Hauptstadt von Deutschland ist",
    ),
}
