"""The memory that the steps of a model share, and the header that tells kernels where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from caldrix.models.lane import LaneOptions
from caldrix.models.program import Attend, DeltaRule, Program, Value
from caldrix.weights.tensor import Float32
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.assemble import Tape, pack_columns
from caldrix_cpu.kv_cache import CacheLayout
from caldrix_cpu.plan import Pack, Plan
from caldrix_cpu.runs import MOST_TOKENS, Run
from caldrix_cpu.states import key_dim
from caldrix_cpu.team import Header
from caldrix_cpu.tiles.layouts import BLOCK, LINE, TILE_ROWS, padded

SMALL_TOKENS = 8
"""Up to so many tokens, each thread computes the cheap operations by itself."""
_PADDING = 8
"""Rows past a run's tokens that a filled-up group may write."""
_UNIT_TOKENS = 8


class StepMemory:
    """The memory that steps share, and the header that tells kernels where it lies."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        tape_: Tape,
        options: LaneOptions,
        caches: Sequence[CacheLayout],
        threads: int,
        header: Header,
        stack: ExitStack,
    ) -> None:
        self.header = header
        self._header = header.data
        self._vocab = padded(program.vocab_size, TILE_ROWS)
        self._vocab_size = program.vocab_size
        self._row = 0
        tokens = MOST_TOKENS + _PADDING
        shared, local = (odd_lines(width) for width in (plan.shared_width, plan.local_width))
        pack = pack_bytes(plan, tokens)
        own_pack = pack_bytes(plan, SMALL_TOKENS + _PADDING)
        own_local = 4 * local * (SMALL_TOKENS + _PADDING)
        segments = -(-options.context // tape.SEGMENT)
        scratch, partials = _attention_bytes(program, caches, options.rows, segments)
        scratch = max(scratch, _delta_bytes(program), 2 * 4 * TILE_ROWS * tokens)
        scratch = padded(tape.ROOM + scratch, LINE)
        counters = LINE * threads * len(plan.items)
        sizes = [
            4 * shared * tokens,
            4 * local * tokens,
            own_local * threads,
            pack * tape_.slots,
            own_pack * tape_.slots * threads,
            scratch * threads,
            partials,
            counters,
            16 * LINE,
        ]
        arena = stack.enter_context(Arena(sum(padded(size, LINE) for size in sizes)))
        blocks = [arena.take(size) for size in sizes]
        self._shared = blocks[0].view(np.float32).reshape(tokens, shared)
        self._local = blocks[1].view(np.float32).reshape(tokens, local)
        self._counters = blocks[7]
        self.embeddings = self.view(plan, plan.begin.out, tokens)
        self.embeddings_padding = self._padding(plan, plan.begin.out, tokens)
        self._positions = np.zeros(tokens, np.int64)
        self._rows = np.zeros(tokens, np.int64)
        self._wanted = np.zeros(tokens, np.int64)
        self._units = np.zeros((tokens, tape.UNIT_SIZE), np.int64)
        self._slices = np.zeros((tokens, tape.UNIT_SIZE), np.int64)
        self._logits = np.empty((_PADDING, self._vocab), np.float32)
        self._logits_address = address(self._logits)
        sync = address(blocks[8])
        for field, value in {
            tape.TAPE: address(tape_.records),
            tape.SHARED: address(blocks[0]),
            tape.SHARED_STRIDE: 4 * shared,
            tape.LOCAL: address(blocks[1]),
            tape.LOCAL_STRIDE: 4 * local,
            tape.OWN_LOCAL: address(blocks[2]),
            tape.OWN_LOCAL_BYTES: own_local,
            tape.PACKS: address(blocks[3]),
            tape.PACK_BYTES: pack,
            tape.OWN_PACKS: address(blocks[4]),
            tape.OWN_PACK_BYTES: own_pack,
            tape.OWN_PACKS_BYTES: own_pack * tape_.slots,
            tape.SCRATCH: address(blocks[5]),
            tape.SCRATCH_BYTES: scratch,
            tape.PARTIALS: address(blocks[6]),
            tape.COUNTERS: address(blocks[7]),
            tape.ARRIVALS: sync,
            tape.PHASE: sync + 4 * LINE,
            tape.POSITIONS: address(self._positions),
            tape.ROWS: address(self._rows),
            tape.WANTED_TOKENS: address(self._wanted),
            tape.UNITS: address(self._units),
            tape.SLICES: address(self._slices),
            tape.LOGITS_STRIDE: 4 * self._vocab,
        }.items():
            header[field] = value

    def logits(self, wanted: int) -> Float32:
        """Room for so many rows of logits: ``[rows, vocab_size]``."""
        if wanted + _PADDING > len(self._logits):
            self._logits = np.empty((wanted + _PADDING, self._vocab), np.float32)
            self._logits_address = address(self._logits)
        return self._logits[:, : self._vocab_size]

    def write_logits(self, rows: Float32) -> None:
        """Puts logits that numpy computed where the run's belong."""
        self._logits[self._row : self._row + len(rows), : self._vocab_size] = rows

    def view(self, plan: Plan, value: Value, rows: int) -> Float32:
        """A value of the arena, as numpy sees it."""
        place = plan.places[value]
        arena = self._local if place.local else self._shared
        return arena[:rows, place.column : place.column + value.width]

    def write(self, plan: Plan, value: Value, rows: Float32) -> None:
        """Puts what numpy computed where the next operations read it."""
        self.view(plan, value, len(rows))[...] = rows
        self._padding(plan, value, len(rows))[...] = 0

    def _padding(self, plan: Plan, value: Value, rows: int) -> Float32:
        """A value's columns up to whole vectors; kernels read them, so they must be zero."""
        place = plan.places[value]
        arena = self._local if place.local else self._shared
        return arena[:rows, place.column + value.width : place.column + place.width]

    def lay_out(self, run: Run, logits_row: int) -> int:
        """Tells kernels about a run's tokens; returns the last position of any."""
        header, positions, rows = self._header, self._positions, self._rows
        self._row = logits_row
        self._counters.fill(0)
        first = unit = wanted = longest = last_position = 0
        for index, each in enumerate(run.slices):
            count, start = len(each.tokens), each.start
            end = first + count
            if count == 1:
                positions[first], rows[first] = start, each.row
            else:
                positions[first:end] = np.arange(start, start + count)
                rows[first:end] = each.row
            self._slices[index] = first, count, each.row, start
            for token in range(end - each.wanted, end):
                self._wanted[wanted] = token
                wanted += 1
            for begin in range(0, count, _UNIT_TOKENS):
                self._units[unit] = (
                    first + begin, min(count - begin, _UNIT_TOKENS), each.row, start + begin
                )  # fmt: skip
                unit += 1
            longest = max(longest, count)
            last_position = max(last_position, start + count - 1)
            first = end
        header[tape.WANTED] = run.wanted
        header[tape.UNIT_COUNT] = unit
        header[tape.SLICE_COUNT] = len(run.slices)
        header[tape.LONGEST_SLICE] = longest
        header[tape.SEGMENTS] = last_position // tape.SEGMENT + 1
        header[tape.LOGITS] = self._logits_address + 4 * self._vocab * logits_row
        return last_position


def odd_lines(width: int) -> int:
    """A row's width in floats, of an odd number of cache lines: rows don't crowd the same sets."""
    lines = max(padded(width, TILE_ROWS) // TILE_ROWS, 1)
    return TILE_ROWS * (lines | 1)


def pack_bytes(plan: Plan, tokens: int) -> int:
    """Bytes of the largest packed input of so many tokens."""
    value_bytes = {tape.KIND_F32: 4, tape.KIND_BF16: 2, tape.KIND_Q8: 1}
    tokens = padded(tokens, _PADDING)
    most = LINE
    for item in plan.items:
        if isinstance(item, Pack):
            columns = pack_columns(item)
            blocks = tokens * (columns // BLOCK)
            size = padded(tokens * columns * value_bytes[item.kind], LINE)
            most = max(most, size + 2 * padded(4 * blocks, LINE) + padded(8 * blocks, LINE))
    return most


def _attention_bytes(
    program: Program, caches: Sequence[CacheLayout], rows: int, segments: int
) -> tuple[int, int]:
    """Bytes of a thread's scratch, and of the segments that threads share."""
    heads = max((each.heads for each in program.operations if isinstance(each, Attend)), default=0)
    dim = max((layout.padded_dim for layout in caches), default=0)
    record = 4 * (dim + tape.SEGMENT_TAIL)
    scratch = _PADDING * (4 * tape.SEGMENT + 4 * dim + record * (1 + segments))
    return scratch, min(rows, MOST_TOKENS) * heads * segments * record


def _delta_bytes(program: Program) -> int:
    """Bytes of a thread's scratch."""
    dims = [key_dim(each) for each in program.operations if isinstance(each, DeltaRule)]
    if not dims:
        return 0
    token = 2 * padded(max(dims), TILE_ROWS) + tape.DELTA_FACTORS
    return 4 * (tape.DELTA_TOKENS * token + tape.DELTA_SUMS)
