"""The OpenCL kernels answer as the cpu lane's compiled ones do, and eight together as each alone.

The two lanes add in other orders, and round keys and values to float16 at other sums. The cpu lane
also rounds what it multiplies with: to bfloat16 (2**-9 of each number) with weights in that, to 8
bits (half a step of 127 to a block's largest) with quantized ones, at each product of each layer.
So its logits are off by that, relative to their root mean square; where neither rounds, both lanes
give the same text.
"""

from __future__ import annotations

import numpy as np
import pytest

from caldrix.models.lane import Executor, LaneOptions, Slice
from caldrix_cpu.lane import CpuLane
from tests.support.compiled import Array
from tests.support.opencl import SHAPES, on_host, require_device
from tests.support.random_models import random_model, tokens

TOLERANCE = {"F32": 5e-4, "BF16": 3e-2, "Q8_0": 0.1}
CONTEXT = 96
TOGETHER = 8
CHOSEN = 24
"""Tokens that each lane picks after a prompt."""


def step(executor: Executor, row: int, start: int, text: list[int]) -> Array:
    """The logits after the text."""
    logits: Array = executor.step([Slice(row, start, np.array(text), 1)])[0]
    return logits.copy()


@pytest.mark.parametrize("kind", TOLERANCE)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma3", "qwen3_5"])
def test_logits_and_greedy_texts_are_those_of_the_cpu_lane(family: str, kind: str) -> None:
    require_device()
    model = random_model(family, kind)
    text = tokens(40, seed=3)
    with (
        CpuLane().compile(
            model.program, model.weights, LaneOptions(context=CONTEXT, rows=1)
        ) as reference,
        on_host(model.program, model.weights, context=CONTEXT, kv_dtype="f16") as executor,
    ):
        whole = Slice(0, 0, np.array(text), len(text))
        expected, logits = reference.step([whole]).copy(), executor.step([whole])
        error = np.sqrt(((logits - expected) ** 2).mean() / (expected**2).mean())
        assert error < TOLERANCE[kind]
        if kind == "F32":
            assert greedy(executor, text) == greedy(reference, text)


def greedy(executor: Executor, prompt: list[int]) -> list[int]:
    """What follows a prompt."""
    text, start = list(prompt), 0
    for _ in range(CHOSEN):
        logits = step(executor, 0, start, text[start:])
        start = len(text)
        text.append(int(logits.argmax()))
    return text


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["BF16", "Q4_1"])
def test_eight_together_are_each_as_alone(kind: str, shape: str) -> None:
    """They begin at other lengths, and go on step by step in one company."""
    model = random_model("gemma3", kind)
    texts = [tokens(20 + 5 * row, seed=row) for row in range(TOGETHER)]
    with on_host(
        model.program, model.weights, shape=shape, context=CONTEXT, rows=TOGETHER, kv_dtype="f16"
    ) as executor:
        expected = [
            [step(executor, 0, at, text[at:end]) for at, end in spans(len(text))] for text in texts
        ]
        for row, text in enumerate(texts):
            (first, end), *_ = spans(len(text))
            np.testing.assert_array_equal(step(executor, row, first, text[:end]), expected[row][0])
        for number in range(1, len(expected[0])):
            slices = []
            for row, text in enumerate(texts):
                at, end = spans(len(text))[number]
                slices.append(Slice(row, at, np.array(text[at:end]), 1))
            for own, logits in zip(expected, executor.step(slices), strict=True):
                np.testing.assert_array_equal(logits, own[number])


def spans(length: int) -> list[tuple[int, int]]:
    """All but the last six tokens, and then each of those."""
    ends = range(length - 6, length + 1)
    return list(zip((0, *ends), ends, strict=False))
