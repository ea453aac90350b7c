"""The numpy lane on real files, against transformers in float32 and against llama.cpp.

transformers computes with the same dequantized float32 weights: other orders of summation over
some thirty layers come to about 2e-6 of the largest logit, and the tolerance leaves a factor of
five. llama.cpp multiplies Q4_1 and K-quant blocks with activations rounded to 8 bits and keeps its
cache in float16, which moves its logits by 3 to 6 % of their own spread, a constant shift aside;
so two best tokens nearer than `LLAMA_CPP_MARGIN` may change places.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from caldrix.models.lane import LaneOptions, Slice
from caldrix.models.registry import bind
from caldrix.weights.checkpoint import open_checkpoint
from caldrix_cpu.numpy_executor import NumpyExecutor, numpy_executor
from tests.references.arrays import load_arrays
from tests.references.real_prompts import PROMPTS, SAMPLED, SAMPLED_EACH_TOKEN

DATA = Path(__file__).parents[1] / "references" / "data"
FLOAT32_TOLERANCE = 1e-5
FLOAT32_MARGIN = 0.01
LLAMA_CPP_TOLERANCE = 0.08
LLAMA_CPP_MARGIN = 0.5


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request: Any) -> Iterator[tuple[str, NumpyExecutor]]:
    path = request.getfixturevalue(f"{request.param}_path")
    with open_checkpoint(path) as checkpoint:
        bound = bind(checkpoint)
        with numpy_executor(bound.program, bound.weights, LaneOptions(context=256)) as executor:
            yield request.param, executor


def test_logits_and_greedy_tokens_equal_the_references(model: tuple[str, NumpyExecutor]) -> None:
    name, executor = model
    llama_cpp = load_arrays(DATA / "llama_cpp.npz")
    dequantized = load_arrays(DATA / "dequantized.npz")
    compared = 0
    for number in range(len(PROMPTS[name])):
        key = f"{name}/{number}"
        prompt, tokens = llama_cpp[f"{key}/prompt"], llama_cpp[f"{key}/tokens"]
        logits = follow(executor, prompt, tokens)

        expected = dequantized[f"{key}/logits"]
        sampled = logits[:, list(SAMPLED_EACH_TOKEN)]
        assert np.abs(sampled - expected).max() < FLOAT32_TOLERANCE * np.abs(logits).max()
        clear = dequantized[f"{key}/margins"] > FLOAT32_MARGIN
        assert (logits.argmax(-1) == dequantized[f"{key}/best"])[clear].all()

        peer = llama_cpp[f"{key}/logits"]
        assert (logits[0, list(SAMPLED)] - peer).std() < LLAMA_CPP_TOLERANCE * peer.std()
        clear = llama_cpp[f"{key}/margins"] > LLAMA_CPP_MARGIN
        assert (logits.argmax(-1) == tokens)[clear].all()
        compared += int(clear.sum())
    assert compared > 10 * len(PROMPTS[name])


def follow(executor: NumpyExecutor, prompt: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Logits before each of ``tokens``, decoding them one by one as a server would."""
    rows = [executor.step([Slice(0, 0, prompt, 1)])[0]]
    for index, token in enumerate(tokens[:-1]):
        rows.append(executor.step([Slice(0, len(prompt) + index, np.array([token]), 1)])[0])
    return np.stack(rows)
