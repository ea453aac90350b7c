"""The memory that one stage of an encoder computes in, and the header fields that tell of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np

from caldrix.models.encoder_program import AttendAll
from caldrix.models.program import Value
from caldrix.weights.tensor import Float32
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.assemble import Tape
from caldrix_cpu.plan import Plan
from caldrix_cpu.step_memory import odd_lines, pack_bytes
from caldrix_cpu.tiles.layouts import LINE, TILE_ROWS, padded

_PADDING = 8
"""Rows past the last that a filled-up group may write; also the largest group."""


class EncoderMemory:
    """A stage's values, packed activations and scratch, for one number of rows."""

    def __init__(self, plan: Plan, tape_: Tape, rows: int, threads: int, stack: ExitStack) -> None:
        self._plan = plan
        self._rows = rows
        count = rows + _PADDING
        shared, local = (odd_lines(width) for width in (plan.shared_width, plan.local_width))
        pack = pack_bytes(plan, count)
        scratch = padded(tape.ROOM + _attention_bytes(plan, rows), LINE)
        sizes = [
            4 * shared * count,
            4 * local * count,
            pack * tape_.slots,
            scratch * threads,
            LINE * threads * len(plan.items),
            16 * LINE,
        ]
        arena = stack.enter_context(Arena(sum(padded(size, LINE) for size in sizes)))
        blocks = [arena.take(size) for size in sizes]
        self._shared = blocks[0].view(np.float32).reshape(count, shared)
        self._local = blocks[1].view(np.float32).reshape(count, local)
        self._counters = blocks[4]
        sync = address(blocks[5])
        self._fields = {
            tape.TAPE: address(tape_.records),
            tape.FIRST_OPERATION: 0,
            tape.LAST_OPERATION: len(plan.items),
            tape.TOKENS: rows,
            tape.WANTED: 0,
            tape.THREADS: threads,
            tape.SMALL: 0,
            tape.SHARED: address(blocks[0]),
            tape.SHARED_STRIDE: 4 * shared,
            tape.LOCAL: address(blocks[1]),
            tape.LOCAL_STRIDE: 4 * local,
            tape.PACKS: address(blocks[2]),
            tape.PACK_BYTES: pack,
            tape.SCRATCH: address(blocks[3]),
            tape.SCRATCH_BYTES: scratch,
            tape.COUNTERS: address(blocks[4]),
            tape.ARRIVALS: sync,
            tape.PHASE: sync + 4 * LINE,
        }

    def begin(self, rows: Float32) -> Mapping[int, int]:
        """Takes in a stage's first value; the fields that a header needs for it."""
        first = self._plan.begin.out
        self.view(first)[...] = rows
        # Kernels read whole vectors, and others' values lie there between tiles.
        place = self._plan.places[first]
        arena = self._local if place.local else self._shared
        arena[: self._rows, place.column + first.width : place.column + place.width] = 0
        self._counters.fill(0)
        return self._fields

    def view(self, value: Value) -> Float32:
        """A value, ``[rows, width]``; valid until the next `begin`."""
        place = self._plan.places[value]
        arena = self._local if place.local else self._shared
        return arena[: self._rows, place.column : place.column + value.width]


def _attention_bytes(plan: Plan, rows: int) -> int:
    """Bytes that a thread needs to attend with a group of queries."""
    most = 0
    for item in plan.items:
        if isinstance(item, AttendAll):
            dim = padded(item.q.width // item.heads, TILE_ROWS)
            scores = _PADDING * padded(rows, TILE_ROWS)
            # A row, queries, their results, their scores, and those in bfloat16.
            most = max(most, 4 * (1 + 2 * _PADDING) * dim + (4 + 2) * scores)
    return most
