"""One pass over tiles of a delta rule's state, the only work that takes time in it.

A tile is 16 value columns of a head's state, a line of 16 float32 for each key dimension. Lines
are changed as the last token changes them, and summed up as the next one reads them, in one order:
key dimension after key dimension.
"""

from __future__ import annotations

from typing import Any

import llvmlite.ir as ir
from numba import types

from caldrix_cpu.codegen import machine
from caldrix_cpu.codegen.emit import F32, LANES, Emitter, vector
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import instruction

PASS_ARGUMENTS = 9
_LINE_BYTES = 4 * LANES


def most_tiles() -> int:
    """Tiles of a pass: as many as give each register's sum the time that an addition takes."""
    return max(machine.TARGET.lanes // 8, 1)


def state_pass(*, changes: bool, sums_up: bool) -> Any:
    """``pass(tiles, state, tile_bytes, lines, factors, key, added, next_key, query, sums)``.

    All are int64. With ``changes``, line ``i`` becomes ``factors[0] * line + key[i] * added``, with
    16 values added for each tile. With ``sums_up``, the lines times ``next_key`` and times
    ``query`` are summed up, ``[tiles][2][16]``. What is not asked for is not looked at.
    """
    several, single = (
        _pass(tiles, changes=changes, sums_up=sums_up) for tiles in (most_tiles(), 1)
    )
    most = most_tiles()

    @kernel
    def over_tiles(tiles: int, *arguments: int) -> None:
        if tiles == most:
            several(*arguments)
        else:
            single(*arguments)

    return over_tiles


def _pass(tiles: int, *, changes: bool, sums_up: bool) -> Any:
    kind = vector(F32, LANES)

    @instruction(types.void, *[types.int64] * PASS_ARGUMENTS)
    def over_lines(e: Emitter, *arguments: ir.Value) -> None:
        state, tile_bytes, lines, factors, key, added, next_key, query, sums = arguments
        places = [e.at(state, e.times(tile_bytes, tile)) for tile in range(tiles)]
        totals = e.accumulators(kind, 2 * tiles)
        if changes:
            decay = e.splat(e.load(factors, F32, 4), LANES)
            new = [e.load(e.at(added, _LINE_BYTES * tile), kind, 4) for tile in range(tiles)]
        with e.loop(lines) as line:

            def number(values: ir.Value, at: ir.Value = line) -> ir.Value:
                return e.splat(e.load(e.at(values, e.times(at, 4)), F32, 4), LANES)

            here = [e.at(place, e.times(line, _LINE_BYTES)) for place in places]
            values = [e.load(place, kind, 4) for place in here]
            if changes:
                weight = number(key)
                values = [
                    e.fma(weight, each, e.b.fmul(decay, value))
                    for each, value in zip(new, values, strict=True)
                ]
                for place, value in zip(here, values, strict=True):
                    e.store(place, value, 4)
                    if not sums_up:
                        # These tiles are done with; the memory would be idle while they change.
                        e.prefetch(e.at(place, e.times(tile_bytes, tiles)))
            if sums_up:
                for which, weight in enumerate((number(next_key), number(query))):
                    for tile, value in enumerate(values):
                        index = 2 * tile + which
                        totals.set(index, e.fma(weight, value, totals.get(index)))
        if sums_up:
            for index in range(2 * tiles):
                e.store(e.at(sums, _LINE_BYTES * index), totals.get(index), 4)

    return over_lines
