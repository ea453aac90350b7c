"""Runs a compiled Program: a step is one call of machine code on each thread of a team."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from attrs import frozen

from caldrix.models.lane import LaneError, LaneOptions, LaneUnavailable, Slice
from caldrix.models.program import Attend, Program, Select, Value, inputs
from caldrix.weights.cache import cache_root
from caldrix.weights.tensor import Float32, Tensor
from caldrix_cpu import tape
from caldrix_cpu.arena import Arena, address
from caldrix_cpu.assemble import Assembler, Tape, pack_columns, units_of
from caldrix_cpu.backoff import ThreadChoice
from caldrix_cpu.cores import cores
from caldrix_cpu.formats import Format, choose_format
from caldrix_cpu.kv_cache import CacheLayout, bytes_of, layout_of
from caldrix_cpu.library import load_kernels
from caldrix_cpu.memory import Needs, available_memory, require_memory
from caldrix_cpu.numpy_kernels import compile_operation
from caldrix_cpu.numpy_step import Step
from caldrix_cpu.plan import COMPILED, ByNumpy, Pack, Plan, make_plan
from caldrix_cpu.team import Team, running_team
from caldrix_cpu.tiles.layouts import LINE, TILE_ROWS, padded
from caldrix_cpu.variants import Variant
from caldrix_cpu.weights import WeightStore, most_bytes

MOST_TOKENS = 512
"""Tokens computed in one run; a longer step is several."""
SMALL_TOKENS = 8
"""Up to so many tokens, each thread computes the cheap operations by itself."""
_MOST_CHOSEN = 64
"""Up to so many tokens, the number of threads follows how long steps take."""
_PADDING = 8
"""Rows past a run's tokens that a filled-up group may write."""
_BLOCK = 32
_UNIT_TOKENS = 8
_SPILL_RUN = 64 << 20
"""Bytes of spilled weights that are read before they are let go of."""
_RECORD_TAIL = 16


@frozen
class Part:
    """Items of a plan that run without Python between them, and what Python does afterwards."""

    first: int
    last: int
    then: Callable[[Run], None] | None = None
    selected: bool = False
    """Whether rows are those of the wanted tokens."""


@frozen(eq=False)
class Run:
    """Slices, or parts of them, whose tokens are computed together."""

    slices: tuple[Slice, ...]
    tokens: int
    wanted: int


class TapeExecutor:
    """See `caldrix.models.lane.Executor`."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, Tensor],
        options: LaneOptions,
        plan: Plan,
        tape_: Tape,
        caches: Sequence[CacheLayout],
        team: Team,
        header: Any,
        run: Callable[..., int],
        spill: Arena | None,
        stack: ExitStack,
    ) -> None:
        self.vocab_size = program.vocab_size
        self.bytes_read_per_token = tape_.bytes_read
        self._options = options
        self._plan = plan
        self._tape = tape_
        self._team = team
        # Single numbers are set much faster through a memoryview than through numpy.
        self._header = memoryview(header)
        self._header_address = address(header)
        self._run_kernel = run
        self._spill = spill
        self._embedding = weights[plan.embed.weight]
        self._scale = np.float32(plan.embed.scale)
        self._rings = {
            (layout.ring, cache.window)
            for cache, layout in zip(program.caches, caches, strict=True)
            if layout.windowed and cache.window is not None
        }
        self._reached = [0] * options.rows
        """The end of the positions that a row's rings were last written to."""
        self.threads = team.size
        self._threads = ThreadChoice(team.size)
        self._memory = _StepMemory(program, plan, tape_, options, caches, team.size, header, stack)
        self._parts = self._make_parts(program, weights)
        self._always_large = any(isinstance(item, ByNumpy) for item in plan.items)

    @property
    def by_numpy(self) -> tuple[str, ...]:
        """The operations that the tape lacks, by name."""
        return tuple(
            sorted(
                {
                    type(item.operation).__name__
                    for item in self._plan.items
                    if isinstance(item, ByNumpy)
                }
            )
        )

    def step(self, slices: Sequence[Slice]) -> Float32:
        """Computes the slices; the logits are a view that the next step overwrites."""
        wanted = 0
        for each in slices:
            self._check(each)
            wanted += each.wanted
        logits = self._memory.logits(wanted)
        done = 0
        for run in _runs(slices):
            self._compute(run, done)
            done += run.wanted
        return logits[:wanted]

    def _check(self, part: Slice) -> None:
        end = part.start + len(part.tokens)
        if end > self._options.context:
            raise LaneError(f"a slice ends past the context of {self._options.context} positions")
        reached = self._reached[part.row]
        for ring, window in self._rings:
            # What a query at the start sees must not have been overwritten by later positions.
            if part.start and reached - ring > max(0, part.start - window):
                raise LaneError(
                    f"row {part.row} was computed up to position {reached}, and a layer keeps "
                    f"{ring} positions: it cannot go on from {part.start}"
                )
        self._reached[part.row] = end

    def _compute(self, run: Run, logits_row: int) -> None:
        memory, header = self._memory, self._header
        last_position = memory.lay_out(run, logits_row)
        for rope in self._tape.ropes:
            rope.fill(last_position + 1)
        tokens = [each.tokens for each in run.slices]
        rows = self._embedding.rows_to_float32(
            tokens[0] if len(tokens) == 1 else np.concatenate(tokens)
        )
        if self._scale != 1:
            rows *= self._scale
        memory.write_embeddings(rows)
        small = run.tokens <= SMALL_TOKENS and not self._always_large
        small_wanted = run.wanted <= SMALL_TOKENS and not self._always_large
        # Steps of about as many tokens take about the same time. Long ones are worth all threads
        # even beside a neighbour: threads take over pieces of one that is held up.
        kind = run.tokens.bit_length()
        chosen = run.tokens <= _MOST_CHOSEN
        threads = self._threads.choose(kind) if chosen else self.threads
        began = time.perf_counter()
        header[tape.THREADS] = threads
        header[tape.SMALL_WANTED] = small_wanted
        for part in self._parts:
            if part.selected and not run.wanted:
                break
            if part.last > part.first:
                header[tape.FIRST_OPERATION], header[tape.LAST_OPERATION] = part.first, part.last
                header[tape.TOKENS] = run.wanted if part.selected else run.tokens
                header[tape.SMALL] = small_wanted if part.selected else small
                self._team.begin(threads)
                self._run_kernel(self._header_address, 0)
            if part.then is not None:
                part.then(run)
        if chosen:
            self._threads.record(kind, threads, time.perf_counter() - began)

    def _make_parts(self, program: Program, weights: Mapping[str, Tensor]) -> list[Part]:
        """Cuts the tape where numpy has to run, and where spilled weights are let go of."""
        parts: list[Part] = []
        first, spilled, selected = 0, 0, False

        def cut(end: int, then: Callable[[Run], None]) -> None:
            nonlocal first, spilled, selected
            parts.append(Part(first, end, then, selected))
            selected = selected or any(
                isinstance(item.operation if isinstance(item, ByNumpy) else item, Select)
                for item in self._plan.items[first : end + 1]
            )
            spilled = 0

        for index, item in enumerate(self._plan.items):
            if isinstance(item, ByNumpy):
                cut(index, self._by_numpy(program, weights, item, selected))
                first = index + 1
                continue
            matrix = self._tape.matrices.get(index)
            if matrix is not None and matrix.spilled:
                spilled += matrix.size
                if spilled >= _SPILL_RUN:
                    cut(index + 1, self._drop)
                    first = index + 1
        last = len(self._plan.items)
        parts.append(Part(first, last, self._drop if spilled else None, selected))
        return parts

    def _drop(self, run: Run) -> None:
        assert self._spill is not None
        self._spill.drop()

    def _by_numpy(
        self, program: Program, weights: Mapping[str, Tensor], item: ByNumpy, selected: bool
    ) -> Callable[[Run], None]:
        operation = item.operation
        kernel = compile_operation(program, weights, self._options, operation)
        last = len(program.operations) - 1

        def then(run: Run) -> None:
            count = run.wanted if selected else run.tokens
            registers: list[Float32 | None] = [None] * len(program.operations)
            for value in inputs(operation):
                registers[value.index] = self._memory.view(self._plan, value, count).copy()
            with np.errstate(over="ignore"):
                kernel(registers, Step.of(run.slices))
            result = registers[operation.out.index]
            assert result is not None
            if operation.out.index == last:
                self._memory.write_logits(result)
            else:
                self._memory.view(self._plan, operation.out, len(result))[...] = result

        return then


class _StepMemory:
    """The memory that steps share, and the header that tells kernels where it lies."""

    def __init__(
        self,
        program: Program,
        plan: Plan,
        tape_: Tape,
        options: LaneOptions,
        caches: Sequence[CacheLayout],
        threads: int,
        header: Any,
        stack: ExitStack,
    ) -> None:
        self._header = memoryview(header)
        self._vocab = padded(program.vocab_size, TILE_ROWS)
        self._vocab_size = program.vocab_size
        self._row = 0
        tokens = MOST_TOKENS + _PADDING
        shared, local = (_odd_lines(width) for width in (plan.shared_width, plan.local_width))
        pack = _pack_bytes(plan, tokens)
        own_pack = _pack_bytes(plan, SMALL_TOKENS + _PADDING)
        own_local = 4 * local * (SMALL_TOKENS + _PADDING)
        segments = -(-options.context // tape.SEGMENT)
        scratch, partials = _attention_bytes(program, caches, options.rows, segments)
        scratch = padded(tape.ROOM + max(scratch, 2 * 4 * TILE_ROWS * tokens), LINE)
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
        self._embeddings = self.view(plan, plan.embed.out, tokens)
        self._positions = np.zeros(tokens, np.int64)
        self._rows = np.zeros(tokens, np.int64)
        self._wanted = np.zeros(tokens, np.int64)
        self._units = np.zeros((tokens, tape.UNIT_SIZE), np.int64)
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

    def write_embeddings(self, rows: Float32) -> None:
        """Puts the tokens' embeddings where the first operation reads them."""
        self._embeddings[: len(rows)] = rows

    def lay_out(self, run: Run, logits_row: int) -> int:
        """Tells kernels about a run's tokens; returns the last position of any."""
        header, positions, rows = self._header, self._positions, self._rows
        self._row = logits_row
        self._counters.fill(0)
        first = unit = wanted = longest = last_position = 0
        for each in run.slices:
            count, start = len(each.tokens), each.start
            end = first + count
            if count == 1:
                positions[first], rows[first] = start, each.row
            else:
                positions[first:end] = np.arange(start, start + count)
                rows[first:end] = each.row
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
        header[tape.LONGEST_SLICE] = longest
        header[tape.SEGMENTS] = last_position // tape.SEGMENT + 1
        header[tape.LOGITS] = self._logits_address + 4 * self._vocab * logits_row
        return last_position


def _runs(slices: Sequence[Slice]) -> Iterator[Run]:
    """The slices, cut and drawn together so that each run has a bounded number of tokens."""
    group: list[Slice] = []
    room = MOST_TOKENS

    def run() -> Run:
        return Run(
            tuple(group), sum(len(part.tokens) for part in group), sum(p.wanted for p in group)
        )

    if sum(len(each.tokens) for each in slices) <= MOST_TOKENS:
        group = list(slices)
        yield run()
        return
    for each in slices:
        done, count = 0, len(each.tokens)
        while done < count:
            taken = min(room, count - done)
            # Of the wanted last tokens, those that fall into this part.
            rest = count - done - taken
            wanted = max(0, min(taken, each.wanted - rest))
            tokens = each.tokens[done : done + taken]
            group.append(Slice(each.row, each.start + done, tokens, wanted))
            done += taken
            room -= taken
            if room == 0:
                yield run()
                group, room = [], MOST_TOKENS
    if group:
        yield run()


def _odd_lines(width: int) -> int:
    """A row's width in floats, of an odd number of cache lines: rows don't crowd the same sets."""
    lines = max(padded(width, TILE_ROWS) // TILE_ROWS, 1)
    return TILE_ROWS * (lines | 1)


def _pack_bytes(plan: Plan, tokens: int) -> int:
    """Bytes of the largest packed input of so many tokens."""
    value_bytes = {tape.KIND_F32: 4, tape.KIND_BF16: 2, tape.KIND_Q8: 1}
    tokens = padded(tokens, _PADDING)
    most = LINE
    for item in plan.items:
        if isinstance(item, Pack):
            columns = pack_columns(item)
            blocks = tokens * (columns // _BLOCK)
            size = padded(tokens * columns * value_bytes[item.kind], LINE)
            most = max(most, size + 2 * padded(4 * blocks, LINE) + padded(8 * blocks, LINE))
    return most


def _attention_bytes(
    program: Program, caches: Sequence[CacheLayout], rows: int, segments: int
) -> tuple[int, int]:
    """Bytes of a thread's scratch, and of the segments that threads share."""
    heads = max((each.heads for each in program.operations if isinstance(each, Attend)), default=0)
    dim = max((layout.padded_dim for layout in caches), default=0)
    record = 4 * (dim + _RECORD_TAIL)
    scratch = _PADDING * (4 * tape.SEGMENT + 4 * dim + record * (1 + segments))
    return scratch, min(rows, MOST_TOKENS) * heads * segments * record


@contextmanager
def tape_executor(
    program: Program,
    weights: Mapping[str, Tensor],
    options: LaneOptions,
    variant: Variant,
    compiled: frozenset[type] = COMPILED,
) -> Iterator[TapeExecutor]:
    """An executor of compiled kernels while the block lasts; leaving it ends its threads.

    Raises LaneUnavailable for what this machine cannot give: memory, or a compiler's output.
    """
    kv_dtype = "f16" if options.kv_dtype == "auto" else options.kv_dtype
    formats: dict[str, Format] = {}

    def format_of(name: str) -> Format:
        if name not in formats:
            formats[name] = choose_format(weights[name], options.dtype, dot=variant.dot)
        return formats[name]

    plan = make_plan(program, format_of, compiled)
    caches = [layout_of(cache, options.context, MOST_TOKENS, kv_dtype) for cache in program.caches]
    weight_bytes = most_bytes(plan, weights)
    _require(program, options, weight_bytes, caches)
    units = units_of(plan, kv_dtype)
    kernels = load_kernels(variant, units, options.progress)
    header = np.zeros(tape.HEADER_SIZE, np.int64)
    threads = min(options.threads or cores().compute_threads, tape.MOST_THREADS)
    with ExitStack() as stack:
        memory = stack.enter_context(Arena(weight_bytes))
        spill = None
        if options.weight_budget is not None and weight_bytes > options.weight_budget:
            spill = stack.enter_context(_spill_arena(weight_bytes))
        store = WeightStore(weights, memory, options.weight_budget, spill)
        cache_memory = stack.enter_context(Arena(bytes_of(caches, options.rows)))
        assembler = Assembler(
            program, plan, store, caches, cache_memory, kernels,
            options.context, options.rows, f"attend-{kv_dtype}",
        )  # fmt: skip
        tape_ = assembler.assemble(lambda count: None)
        work = kernels["work"].callable(4)
        team = stack.enter_context(running_team(threads, header, work))
        yield TapeExecutor(
            program, weights, options, plan, tape_, caches, team, header,
            kernels["run"].callable(2), spill, stack,
        )  # fmt: skip


def _spill_arena(size: int) -> Arena:
    folder = cache_root()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Arena(size, spill_to=folder)
    except OSError as error:
        raise LaneUnavailable(
            f"--weight-budget needs room for weights in {folder}: {error.strerror}"
        ) from error


def _require(
    program: Program, options: LaneOptions, weight_bytes: int, caches: Sequence[CacheLayout]
) -> None:
    """Raises LaneUnavailable if weights and full caches are more than is available."""
    each = sum(
        2 * layout.kv_heads * layout.padded_dim * layout.value_bytes
        for layout in caches
        if not layout.windowed
    )
    fixed = sum(2 * layout.row_bytes for layout in caches if layout.windowed)
    in_memory = weight_bytes
    if options.weight_budget is not None:
        in_memory = min(in_memory, options.weight_budget)
    needs = Needs(
        weights=in_memory, kv_each_position=options.rows * each, kv_fixed=options.rows * fixed
    )
    require_memory(needs, options, available_memory())


__all__ = ["TapeExecutor", "tape_executor"]
