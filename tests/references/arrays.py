"""Named arrays in one file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a compressed .npz file."""
    # numpy's own signature takes the names for options.
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """Reads all of a .npz file."""
    with np.load(path) as stored:
        return dict(stored)
