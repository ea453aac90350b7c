"""The tape's interpreter: one call computes a step, on every thread of the team alike.

Operations that divide their work take it from a counter, piece by piece, so a thread that was held
up does less of it. What a piece computes does not depend on who computes it.
"""

from __future__ import annotations

from numba import float32

from caldrix_cpu import tape
from caldrix_cpu.codegen import machine, rowwise
from caldrix_cpu.codegen.activations import (
    filled_group,
    pack_bf16,
    pack_f32,
    pack_q8,
    root_mean_square,
)
from caldrix_cpu.codegen.calls import call_matmul, call_unit
from caldrix_cpu.codegen.functions import activated
from caldrix_cpu.codegen.kernel import kernel
from caldrix_cpu.codegen.lanes import (
    fetch_and_increment,
    float_of_bits,
    load,
    load_acquire,
    load_int,
    prefetch,
    store,
)
from caldrix_cpu.codegen.team import await_step, barrier
from caldrix_cpu.codegen.values import field, rounded_up, row_in, thread_scratch

_GROUP = machine.TARGET.group
_BLOCK = 32
_CACHED_BYTES = 1 << 18
"""Activations that stay in a core's second-level cache while the weights pass by."""
_PIECES = 8
"""Pieces of an operation for each thread: enough to even out, few enough to fetch cheaply."""
_MOST_TILES = 16
_PREFETCHED_LINES = 128
_LINE = 64


@kernel
def _value_bytes(kind: int) -> int:
    """Bytes that an activation takes."""
    if kind == tape.KIND_F32:
        return 4
    if kind == tape.KIND_BF16:
        return 2
    return 1


@kernel
def _packed(
    header: int, record: int, thread: int, tokens: int, small: int
) -> tuple[int, int, int, int]:
    """Where a slot's activations, scales, sums and sums of halves lie."""
    slot, kind = field(record, tape.SLOT), field(record, tape.KIND)
    columns = field(record, tape.COLUMNS)
    if small:
        base = load_int(header + 8 * tape.OWN_PACKS)
        base += thread * load_int(header + 8 * tape.OWN_PACKS_BYTES)
        base += slot * load_int(header + 8 * tape.OWN_PACK_BYTES)
    else:
        base = load_int(header + 8 * tape.PACKS) + slot * load_int(header + 8 * tape.PACK_BYTES)
    padded = rounded_up(tokens, _GROUP)
    blocks = columns // _BLOCK
    scales = base + rounded_up(padded * columns * _value_bytes(kind), _LINE)
    sums = scales + rounded_up(padded * blocks * 4, _LINE)
    halves = sums + rounded_up(padded * blocks * 4, _LINE)
    return base, scales, sums, halves


@kernel
def _pack(header: int, record: int, thread: int, threads: int, tokens: int, small: int) -> None:
    kind, columns = field(record, tape.KIND), field(record, tape.COLUMNS)
    weight, width = field(record, tape.NORM_WEIGHT), field(record, tape.NORM_WIDTH)
    eps = float_of_bits(field(record, tape.NORM_EPS))
    base, scales, sums, halves = _packed(header, record, thread, tokens, small)
    blocks = columns // _BLOCK
    room = thread_scratch(header, thread)
    groups = (tokens + _GROUP - 1) // _GROUP
    first, last = 0, groups
    if not small:
        first, last = groups * thread // threads, groups * (thread + 1) // threads
    for number in range(first, last):
        begin = number * _GROUP
        count = min(tokens - begin, _GROUP)
        group = filled_group(count, _GROUP)
        for lane in range(count):
            x = row_in(header, thread, field(record, tape.X), begin + lane, small)
            scale = float32(1.0)
            if weight != 0:
                scale = root_mean_square(x, width, eps)
            if kind == tape.KIND_Q8:
                pack_q8(
                    x, weight, scale, columns, group, lane,
                    base + begin * columns,
                    scales + begin * blocks * 4,
                    sums + begin * blocks * 4,
                    halves + begin * blocks * 8,
                    room,
                )  # fmt: skip
            elif kind == tape.KIND_BF16:
                pack_bf16(x, weight, scale, columns, group, lane, base + begin * columns * 2, room)
            else:
                pack_f32(x, weight, scale, columns, group, lane, base + begin * columns * 4)


@kernel
def _linear_piece(
    header: int,
    record: int,
    thread: int,
    small: int,
    begin: int,
    tokens: int,
    first: int,
    last: int,
    x: int,
    x_scales: int,
    x_sums: int,
) -> None:
    """Tiles ``first`` to ``last`` for tokens ``begin`` and on."""
    matmul, weights = field(record, tape.MATMUL), field(record, tape.WEIGHTS)
    tile_bytes, columns = field(record, tape.TILE_BYTES), field(record, tape.COLUMNS)
    gated = field(record, tape.GATED)
    if gated:
        out_value = field(record, tape.OUT)
        room = thread_scratch(header, thread) + tape.ROOM
        for tile in range(first, last, 2):
            call_matmul(
                matmul, weights, tile_bytes, columns, tile, tile + 2, tokens,
                x, x_scales, x_sums, room, 128,
            )  # fmt: skip
            for token in range(tokens):
                row = row_in(header, thread, out_value, begin + token, small)
                pair = room + 128 * token
                value = activated(load(pair), gated) * load(pair + 64)
                store(row + 32 * tile, value)
        return
    if field(record, tape.TO_LOGITS):
        stride = load_int(header + 8 * tape.LOGITS_STRIDE)
        out = load_int(header + 8 * tape.LOGITS) + begin * stride
    else:
        stride = load_int(header + 8 * tape.SHARED_STRIDE)
        out = row_in(header, thread, field(record, tape.OUT), begin, small)
    out += 64 * first
    call_matmul(
        matmul, weights, tile_bytes, columns, first, last, tokens,
        x, x_scales, x_sums, out, stride,
    )  # fmt: skip
    bias, residual = field(record, tape.BIAS), field(record, tape.RESIDUAL)
    if bias != 0:
        for token in range(tokens):
            for tile in range(last - first):
                place = out + token * stride + 64 * tile
                store(place, load(place) + load(bias + 64 * (first + tile)))
    if residual >= 0:
        for token in range(tokens):
            row = row_in(header, thread, residual, begin + token, small) + 64 * first
            for tile in range(last - first):
                place = out + token * stride + 64 * tile
                store(place, load(row + 64 * tile) + load(place))


@kernel
def _fitting_tokens(record: int) -> int:
    """Tokens whose activations stay in the cache while a piece's weights pass by."""
    bytes_each = field(record, tape.COLUMNS) * _value_bytes(field(record, tape.KIND))
    return max(_CACHED_BYTES // bytes_each // _GROUP * _GROUP, _GROUP)


@kernel
def _piece_tiles(record: int, threads: int, tokens: int, token_blocks: int) -> int:
    """Tiles of a piece; even, so that a gate's pairs stay together."""
    piece = field(record, tape.TILES) * token_blocks // (threads * _PIECES)
    if tokens > _GROUP:
        piece = min(piece, _MOST_TILES)
    return max(piece // 2 * 2, 2)


@kernel
def _linear(
    header: int, record: int, thread: int, threads: int, tokens: int, small: int, counters: int
) -> None:
    """A thread's own run of pieces, and then what others have left of theirs.

    Its own run is contiguous, so that the weights come as one stream.
    """
    kind, columns = field(record, tape.KIND), field(record, tape.COLUMNS)
    tiles = field(record, tape.TILES)
    x, x_scales, x_sums, x_halves = _packed(header, record, thread, tokens, small)
    blocks = columns // _BLOCK
    sums_each = blocks * 4
    if field(record, tape.HALVES):
        x_sums = x_halves
        sums_each = blocks * 8
    value_bytes = _value_bytes(kind)
    fitting = _fitting_tokens(record)
    token_blocks = (tokens + fitting - 1) // fitting
    piece = _piece_tiles(record, threads, tokens, token_blocks)
    pieces = (tiles + piece - 1) // piece
    everything = pieces * token_blocks
    for turn in range(threads):
        owner = (thread + turn) % threads
        begun = everything * owner // threads
        size = everything * (owner + 1) // threads - begun
        while True:
            number = fetch_and_increment(counters + owner * _LINE)
            if number >= size:
                break
            number += begun
            begin = number // pieces * fitting
            first = number % pieces * piece
            _linear_piece(
                header, record, thread, small, begin, min(tokens - begin, fitting),
                first, min(first + piece, tiles),
                x + begin * columns * value_bytes,
                x_scales + begin * blocks * 4,
                x_sums + begin * sums_each,
            )  # fmt: skip


@kernel
def _prefetch_next(header: int, record: int, thread: int, threads: int, tokens: int) -> None:
    """Asks for the beginning of this thread's run of the next product.

    The memory would else be idle until the threads have met and packed their input.
    """
    following = field(record, tape.NEXT)
    if following == 0:
        return
    record += 8 * tape.RECORD * following
    tiles = field(record, tape.TILES)
    fitting = _fitting_tokens(record)
    token_blocks = (tokens + fitting - 1) // fitting
    piece = _piece_tiles(record, threads, tokens, token_blocks)
    pieces = (tiles + piece - 1) // piece
    tile = pieces * token_blocks * thread // threads % pieces * piece
    place = field(record, tape.WEIGHTS)
    if field(record, tape.TILE_BYTES):
        place += tile * field(record, tape.TILE_BYTES)
    else:
        place += load_int(place + 8 * tile)
    for line in range(_PREFETCHED_LINES):
        prefetch(place + _LINE * line)


@kernel
def _select(
    header: int, record: int, thread: int, threads: int, small: int, small_after: int
) -> None:
    """Copies the wanted tokens' rows; reads rows of the whole step, writes rows of the wanted."""
    width, wanted = field(record, tape.WIDTH), load_int(header + 8 * tape.WANTED)
    numbers = load_int(header + 8 * tape.WANTED_TOKENS)
    first, last = 0, wanted
    if not small_after:
        first, last = wanted * thread // threads, wanted * (thread + 1) // threads
    for token in range(first, last):
        x = row_in(header, thread, field(record, tape.X), field(numbers, token), small)
        out = row_in(header, thread, field(record, tape.OUT), token, small_after)
        for column in range(0, width, 16):
            store(out + 4 * column, load(x + 4 * column))


@kernel
def _is_unit(operation: int) -> bool:
    """Whether an operation's kernel is compiled by itself, for the models that have it."""
    return operation in (tape.ATTEND, tape.ATTEND_ALL, tape.CONVOLVE, tape.DELTA_RULE)


@kernel
def run(header: int, thread: int) -> None:
    """Computes operations ``FIRST_OPERATION`` to ``LAST_OPERATION`` - 1 of the header's tape."""
    tokens, threads = load_int(header + 8 * tape.TOKENS), load_int(header + 8 * tape.THREADS)
    small = load_int(header + 8 * tape.SMALL)
    first_operation = load_int(header + 8 * tape.FIRST_OPERATION)
    counters = load_int(header + 8 * tape.COUNTERS)
    for number in range(first_operation, load_int(header + 8 * tape.LAST_OPERATION)):
        record = load_int(header + 8 * tape.TAPE) + number * 8 * tape.RECORD
        counter = counters + number * threads * _LINE
        operation = field(record, tape.OPERATION)
        if number > first_operation and (not small or field(record, tape.WAITS)):
            barrier(header, threads)
        first, last = 0, tokens
        if not small:
            first, last = tokens * thread // threads, tokens * (thread + 1) // threads
        if operation == tape.LINEAR:
            _linear(header, record, thread, threads, tokens, small, counter)
            _prefetch_next(header, record, thread, threads, tokens)
        elif operation == tape.PACK:
            _pack(header, record, thread, threads, tokens, small)
        elif _is_unit(operation):
            call_unit(field(record, tape.FUNCTION), header, record, thread, counter)
        elif operation == tape.NORM:
            rowwise.norm(header, record, thread, first, last, small)
        elif operation == tape.ROPE:
            rowwise.rope(header, record, thread, first, last, small)
        elif operation == tape.GATE:
            rowwise.gate(header, record, thread, first, last, small)
        elif operation == tape.ADD:
            rowwise.add(header, record, thread, first, last, small)
        elif operation == tape.LAYER_NORM:
            rowwise.layer_norm(header, record, thread, first, last, small)
        elif operation == tape.ACTIVATE:
            rowwise.activate(header, record, thread, first, last, small)
        elif operation == tape.ADD_TABLE:
            rowwise.add_table(header, record, thread, first, last, small)
        elif operation == tape.PART:
            rowwise.part(header, record, thread, first, last, small)
        else:
            small_after = load_int(header + 8 * tape.SMALL_WANTED)
            _select(header, record, thread, threads, small, small_after)
            tokens, small = load_int(header + 8 * tape.WANTED), small_after
            if tokens == 0:
                break
    barrier(header, threads)


@kernel
def work(header: int, thread: int, seen: int, spins: int) -> int:
    """A worker's life until it has waited in vain for so many spins: the last step it has seen.

    A worker whose number is past the step's threads has no part in it and must not look at the
    header, which may be the next step's already: the generation itself tells how many take part.
    """
    generation = load_int(header + 8 * tape.GENERATION)
    while await_step(header, seen, spins):
        seen = load_acquire(generation)
        if load_acquire(load_int(header + 8 * tape.STOPPED)):
            break
        if thread < seen & tape.MOST_THREADS:
            run(header, thread)
    return seen
