"""The tape: a Program as numbers, for one compiled function to run.

A tape is int64 ``[operations, RECORD]``. A record's first field is its operation; the others are
named below, by operation. A value is written as ``2 * byte offset + local``: its columns within a
row of the shared or of the local arena, which have a row for each token of the step.

*Shared* values are written by operations that divide their work among the threads by columns.
*Local* values come from cheap operations. In a small step every thread computes those by itself,
in an arena of its own, and needs not wait for anybody; in a large one threads divide the tokens,
and there is one local arena for all.
"""

from __future__ import annotations

RECORD = 24
NO_VALUE = -1

# Operations
PACK, LINEAR, NORM, ROPE, ATTEND, GATE, ADD, SELECT, PART, CONVOLVE, DELTA_RULE = range(11)
LAYER_NORM, ACTIVATE, ADD_TABLE, ATTEND_ALL = range(11, 15)

# Fields of every operation
OPERATION = 0
WAITS = 1
"""Whether a small step's threads must meet before it: it reads what others wrote."""
X, OUT = 2, 3
"""The value read and the value written."""

# PACK: x, normalised where there is a weight, as activations of a kind
KIND, SLOT, COLUMNS, NORM_WEIGHT, NORM_EPS, NORM_WIDTH = range(4, 10)
KIND_F32, KIND_BF16, KIND_Q8 = range(3)

# LINEAR: KIND, SLOT and COLUMNS as above
MATMUL, WEIGHTS, TILE_BYTES, TILES, HALVES, BIAS, RESIDUAL, GATED, TO_LOGITS, NEXT = range(7, 17)
GATED_NOT, GATED_SILU, GATED_GELU_TANH, GATED_SIGMOID = range(4)

# NORM: NORM_WEIGHT, NORM_EPS and NORM_WIDTH as above
GROUPS = 10

# ROPE
HEADS, HEAD_DIM, PAIRS, INTERLEAVED, COSINES, SINES = range(4, 10)

# ATTEND: HEADS and HEAD_DIM as above; X is the queries
KEYS, VALUES, KV_HEADS, PADDED_DIM, SCALE, FUNCTION = range(6, 12)
KEY_CACHE, VALUE_CACHE, ROW_BYTES, HEAD_BYTES, RING, WINDOW = range(12, 18)
"""Where the caches begin; bytes from row to row and from head to head; positions that a row's ring
holds; positions a query sees (a very large number where there is no window)."""

# GATE (x is the gate), ADD, SELECT
OTHER, WIDTH, ACTIVATION = range(4, 7)

# LAYER_NORM: NORM_WEIGHT, NORM_EPS and NORM_WIDTH as above
NORM_BIAS = 10

# ACTIVATE: WIDTH and ACTIVATION as above, the width that of the value alone

# ADD_TABLE: OTHER is where the table's rows begin, WIDTH how many floats each has

# ATTEND_ALL: HEADS, HEAD_DIM, KEYS, VALUES, PADDED_DIM, SCALE, FUNCTION, KEY_CACHE, VALUE_CACHE and
# HEAD_BYTES as for ATTEND; it keeps nothing in them past its own end
# PART: GROUPS as above
PART_COLUMNS, GROUP_COLUMNS, START = range(4, 7)
"""Columns that are taken of each group, columns of a group, and the first that is taken."""

# CONVOLVE: WIDTH, ACTIVATION and FUNCTION as above
TAPS, TAP_WEIGHTS = range(7, 9)

# DELTA_RULE: HEADS, KEYS, VALUES, SCALE and FUNCTION as above; X is the queries
KEY_DIM, KEY_HEADS, TILED, UNIT_EPS = 5, 8, 9, 19
VALUE_DIM, DECAY, STRENGTH, RATES, RATE_BIASES = range(14, 19)

# CONVOLVE and DELTA_RULE
STATE, STATE_BYTES = range(12, 14)
"""Where row 0's state begins, and bytes from row to row."""

# The header of a step, int64
(
    TAPE,
    FIRST_OPERATION,
    LAST_OPERATION,
    TOKENS,
    WANTED,
    THREADS,
    SMALL,
    SMALL_WANTED,
    SHARED,
    SHARED_STRIDE,
    LOCAL,
    LOCAL_STRIDE,
    OWN_LOCAL,
    OWN_LOCAL_BYTES,
    PACKS,
    PACK_BYTES,
    OWN_PACKS,
    OWN_PACK_BYTES,
    OWN_PACKS_BYTES,
    LOGITS,
    LOGITS_STRIDE,
    SCRATCH,
    SCRATCH_BYTES,
    COUNTERS,
    ARRIVALS,
    PHASE,
    POSITIONS,
    ROWS,
    WANTED_TOKENS,
    UNITS,
    UNIT_COUNT,
    SLICES,
    SLICE_COUNT,
    LONGEST_SLICE,
    SEGMENTS,
    PARTIALS,
    GENERATION,
    STOPPED,
    HEADER_SIZE,
) = range(39)

UNIT_TOKEN, UNIT_TOKENS, UNIT_ROW, UNIT_START = range(4)
"""A run of tokens of one row that attend together, or a whole slice: the first, how many, their
row, the first one's position."""
UNIT_SIZE = 4

SEGMENT = 128
"""Positions whose attention is summed up by themselves, counted from position 0 on."""
SEGMENT_TAIL = 16
"""Floats beside a segment's values: its largest score, its sum, and padding to a cache line."""
ROOM = 64
"""Bytes at the beginning of a thread's scratch for small things."""

DELTA_TOKENS = 32
"""Tokens whose queries and keys are made ready before they are taken into a delta rule's state."""
DELTA_FACTORS = 16
"""Floats beside a token's query and key: its decay, its strength, the product of both, padding."""
DELTA_SUMS = 6 * 16
"""Floats that a delta rule sums up in: what two tiles hold of key and query, and are given."""

MOST_THREADS = 255
"""A generation is ``256 * number of the step + threads``."""
