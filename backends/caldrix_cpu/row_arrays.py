"""What rows hold in this machine's memory, and copies of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from caldrix.weights.blocks import UInt8
from caldrix.weights.tensor import Float32
from caldrix_cpu.kv_cache import Cache
from caldrix_cpu.numpy_attention import CacheArrays
from caldrix_cpu.numpy_memory import StateArrays
from caldrix_cpu.rows import Ring, Rows

Parts = Sequence[Float32 | UInt8]


class RowArrays:
    """Caches and states in arrays; see `caldrix_cpu.rows.RowMemory`."""

    def __init__(
        self, caches: Sequence[Cache | CacheArrays], states: Sequence[StateArrays]
    ) -> None:
        self._memories = (*caches, *states)

    def copy(self, source: int, target: int, length: int) -> None:
        """From the one row's arrays to the other's."""
        self._overwrite(target, length, self._parts(source, length))

    def keep(self, row: int, length: int) -> Parts:
        """Arrays of their own."""
        return [part.copy() for part in self._parts(row, length)]

    def put_back(self, kept: Parts, row: int, length: int) -> None:
        """From those to a row's."""
        self._overwrite(row, length, kept)

    def kept_bytes(self, length: int) -> int:
        """What those take."""
        return sum(part.nbytes for part in self._parts(0, length))

    def _parts(self, row: int, length: int) -> Iterator[Float32 | UInt8]:
        """Views of all that a row holds of its first ``length`` positions."""
        for memory in self._memories:
            yield from memory.parts(row, length)

    def _overwrite(self, row: int, length: int, parts: Iterable[Float32 | UInt8]) -> None:
        for old, new in zip(self._parts(row, length), parts, strict=True):
            old[...] = new


def rows_in_arrays(
    caches: Sequence[Cache | CacheArrays],
    states: Sequence[StateArrays],
    rows: int,
    *,
    reusable: bool = True,
) -> Rows[Parts]:
    """The account of rows whose caches and states are these."""
    rings = [
        Ring(cache.layout.ring, cache.window)
        for cache in caches
        if isinstance(cache, Cache) and cache.layout.windowed and cache.window is not None
    ]
    memory = RowArrays(caches, states)
    return Rows(memory, rows, rings=rings, states=bool(states), reusable=reusable)
