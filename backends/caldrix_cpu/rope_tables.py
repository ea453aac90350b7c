"""Cosines and sines of rotary embeddings, filled in as positions are reached."""

from __future__ import annotations

import numpy as np

from caldrix.weights.tensor import Float32
from caldrix_cpu.arena import address

_BLOCK = 512
"""Positions filled in at a time, always the same ones together."""


class RopeTable:
    """Tables ``[context, pairs]`` float32, computed in float64 for each position."""

    def __init__(self, frequencies: tuple[float, ...], context: int) -> None:
        shape = (-(-context // _BLOCK) * _BLOCK, len(frequencies))
        self._frequencies = np.array(frequencies, np.float64)
        self._cosines: Float32 = np.empty(shape, np.float32)
        self._sines: Float32 = np.empty(shape, np.float32)
        self._filled = 0

    @property
    def addresses(self) -> tuple[int, int]:
        """Where cosines and sines begin."""
        return address(self._cosines), address(self._sines)

    def fill(self, end: int) -> None:
        """Makes sure of the positions before ``end``."""
        while self._filled < end:
            block = slice(self._filled, self._filled + _BLOCK)
            angles = np.arange(block.start, block.stop)[:, None] * self._frequencies
            self._cosines[block] = np.cos(angles)
            self._sines[block] = np.sin(angles)
            self._filled = block.stop
