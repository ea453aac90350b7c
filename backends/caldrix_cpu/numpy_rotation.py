"""Rotary position embedding in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from caldrix.weights.tensor import Float32
from caldrix_cpu.numpy_step import Step


class Rotation:
    """Turns pairs of dimensions by angles that grow with the position.

    The tables are ``[context, 1, 2, pairs]``, or ``[context, 1, pairs, 2]`` for interleaved pairs,
    computed in float64: a pair ``(a, b)`` becomes ``(a cos - b sin, b cos + a sin)``.
    """

    def __init__(self, frequencies: Sequence[float], interleaved: bool, context: int) -> None:
        self._axis = -1 if interleaved else -2
        angles = np.arange(context)[:, None, None] * np.array(frequencies, np.float64)
        cosines, sines = np.cos(angles), np.sin(angles)
        self._cosines = np.stack([cosines, cosines], self._axis).astype(np.float32)
        self._sines = np.stack([-sines, sines], self._axis).astype(np.float32)
        self._gathered: tuple[Step, Float32, Float32] | None = None

    def __call__(self, x: Float32, step: Step) -> Float32:
        """``[tokens, heads, 2 * pairs]``, turned; the same shape."""
        cosines, sines = self._at(step)
        pairs = x.reshape(*x.shape[:2], *cosines.shape[2:])
        swapped = pairs[..., ::-1, :] if self._axis == -2 else pairs[..., ::-1]
        return (pairs * cosines + swapped * sines).reshape(x.shape)

    def _at(self, step: Step) -> tuple[Float32, Float32]:
        """The tables' rows for a step's tokens, looked up once a step."""
        if self._gathered is None or self._gathered[0] is not step:
            positions = step.positions
            self._gathered = step, self._cosines[positions], self._sines[positions]
        return self._gathered[1], self._gathered[2]
