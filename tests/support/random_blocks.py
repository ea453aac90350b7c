"""Random blocks of quantized formats, whose values are numbers."""

from __future__ import annotations

import numpy as np

from caldrix.weights.blocks import BlockFormat

# Where the float16 scales of a block stand, so that random bytes can be given sane ones.
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def random_blocks(block_format: BlockFormat, rows: int, row_blocks: int, seed: int) -> np.ndarray:
    """Random bytes, ``[rows, row_bytes]``, whose scales are normal float16 numbers."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows * row_blocks, block_format.block_bytes), dtype=np.uint8)
    for at in HALVES[block_format.name]:
        scales = rng.standard_normal(len(data)).astype("<f2")
        data[:, at : at + 2] = scales[:, None].view(np.uint8)
    return data.reshape(rows, -1)
