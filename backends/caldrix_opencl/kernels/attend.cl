// Causal attention, its softmax computed as positions go by (Milakov and Gimelshein, 2018).
//
// A row's positions are cut into segments of SEGMENT, wherever its tokens begin; each is summed up
// by itself, in tiles of 16 positions, and the segments are merged in their order. So the bits are
// the same whether one group of lanes goes through all segments (attend) or each has a group of its
// own (attend_segment, then merge_segments).
//
// A work-group has a token and HEADS of its heads.

#define DIM_TILES (DIM / TILE)
#define RECORD (DIM + 2)
#define EACH_TILE _Pragma("unroll")

typedef struct {
    float most, total;
    lanes sum[DIM_TILES];
} Attended;

static inline void begin(Attended *a)
{
    a->most = -INFINITY;
    a->total = 0.0f;
    EACH_TILE
    for (int t = 0; t < DIM_TILES; t++)
        a->sum[t] = (lanes)(0.0f);
}

static inline void merge(Attended *into, const Attended *other)
{
    const float most = fmax(into->most, other->most);
    const float before = exp(into->most - most), now = exp(other->most - most);
    into->total = fma(other->total, now, into->total * before);
    EACH_TILE
    for (int t = 0; t < DIM_TILES; t++)
        into->sum[t] = fma(other->sum[t], (lanes)(now), into->sum[t] * before);
    into->most = most;
}

// Positions ``first`` to ``last`` of one segment.
static inline void segment_of(
    Attended *a, __local const float *query, __local float *shared,
    __global const kept *keys, __global const kept *values, int positions, int first, int last)
{
    begin(a);
    for (int base = first / TILE * TILE; base <= last; base += TILE) {
        const int place = place_of(base, positions);
        __global const kept *key = keys + (size_t)place * DIM;
        lanes s0 = (lanes)(0.0f), s1 = s0, s2 = s0, s3 = s0;
        for (int d = 0; d < DIM; d += 4) {
            s0 = fma(load_kept(key + d * TILE), (lanes)(query[d]), s0);
            s1 = fma(load_kept(key + d * TILE + TILE), (lanes)(query[d + 1]), s1);
            s2 = fma(load_kept(key + d * TILE + 2 * TILE), (lanes)(query[d + 2]), s2);
            s3 = fma(load_kept(key + d * TILE + 3 * TILE), (lanes)(query[d + 3]), s3);
        }
        // Places that hold no position yet may hold anything.
        const int begins = max(first - base, 0), ends = min(last - base, TILE - 1);
        const lanes scores = only_from_to((s0 + s1) + (s2 + s3), begins, ends, -INFINITY);
        const float most = fmax(a->most, most_of(scores, shared));
        if (most > a->most) {
            const float before = exp(a->most - most);
            a->total *= before;
            EACH_TILE
            for (int t = 0; t < DIM_TILES; t++)
                a->sum[t] *= before;
            a->most = most;
        }
        const lanes weights = exp(scores - most);
        a->total += sum_of(weights, shared);
        TOGETHER();
        store_floats(weights, shared);
        TOGETHER();
        for (int j = begins; j <= ends; j++) {
            __global const kept *value = values + (size_t)(place + j) * DIM;
            EACH_TILE
            for (int t = 0; t < DIM_TILES; t++)
                a->sum[t] = fma(load_kept(value + t * TILE), (lanes)(shared[j]), a->sum[t]);
        }
    }
}

static inline void write_result(const Attended *a, __global float *out, int head_dim)
{
    EACH_TILE
    for (int t = 0; t < DIM_TILES; t++)
        if (t * TILE < head_dim)
            store_some(a->sum[t] / a->total, out + t * TILE, head_dim - t * TILE);
}

static inline void read_query(
    __local float *query, __global const float *q, int head_dim, float scale)
{
    for (int t = 0; t < DIM; t += TILE)
        store_floats(load_some(q + t, head_dim - t) * scale, query + t);
    TOGETHER();
}

#define ATTENDING                                                                                  \
    __global float *values, ulong q_at, int q_stride, ulong out_at, int out_stride,                \
    __global const kept *cached_keys, __global const kept *cached_values,                          \
    int heads, int kv_heads, int head_dim, int positions, int window, float scale,                 \
    __global const int2 *places, __global float *records, int segments

#define OWN_MEMORY                                                                                 \
    __local float queries[HEADS][DIM], shareds[HEADS][TILE];                                       \
    __local float *query = queries[get_local_id(1)], *shared = shareds[get_local_id(1)];

// What both begin with; ``token`` and ``head`` are there.
#define PREPARE_QUERY                                                                              \
    const int position = places[token].x;                                                          \
    const int seen = window > 0 ? max(position + 1 - window, 0) : 0;                               \
    const int kv_head = head / (heads / kv_heads);                                                 \
    const size_t cached = head_at(places[token].y, kv_head, kv_heads, positions);                  \
    __global const kept *keys = cached_keys + cached, *vals = cached_values + cached;              \
    read_query(query, values + q_at + token * q_stride + (size_t)head * head_dim, head_dim, scale);

static inline void attend_head(
    int head, size_t token, __local float *query, __local float *shared, ATTENDING)
{
    PREPARE_QUERY
    Attended all, one;
    begin(&all);
    for (int from = seen / SEGMENT * SEGMENT; from <= position; from += SEGMENT) {
        segment_of(&one, query, shared, keys, vals, positions, max(from, seen),
                   min(from + SEGMENT - 1, position));
        merge(&all, &one);
    }
    write_result(&all, values + out_at + token * out_stride + (size_t)head * head_dim, head_dim);
}

KERNEL(LANES, HEADS) attend(ATTENDING)
{
    OWN_MEMORY
    attend_head(get_global_id(1), get_global_id(2), query, shared,
                values, q_at, q_stride, out_at, out_stride, cached_keys, cached_values,
                heads, kv_heads, head_dim, positions, window, scale, places, records, segments);
}

// Of a few tokens: a group for each segment, of which those past a token's position do nothing.
KERNEL(LANES, HEADS) attend_segment(ATTENDING)
{
    const int head = get_global_id(1);
    const size_t token = get_global_id(2);
    const int segment = get_group_id(0), from = segment * SEGMENT;
    OWN_MEMORY
    PREPARE_QUERY
    if (from > position || from + SEGMENT <= seen)
        return;
    Attended one;
    segment_of(&one, query, shared, keys, vals, positions, max(from, seen),
               min(from + SEGMENT - 1, position));
    __global float *record = records + ((token * heads + head) * segments + segment) * RECORD;
    EACH_TILE
    for (int t = 0; t < DIM_TILES; t++)
        store_floats(one.sum[t], record + t * TILE);
    if (LANE == 0) {
        record[DIM] = one.most;
        record[DIM + 1] = one.total;
    }
}

KERNEL(LANES, HEADS) merge_segments(ATTENDING)
{
    const int head = get_global_id(1);
    const size_t token = get_global_id(2);
    const int position = places[token].x;
    const int seen = window > 0 ? max(position + 1 - window, 0) : 0;
    Attended all, one;
    begin(&all);
    for (int segment = seen / SEGMENT; segment <= position / SEGMENT; segment++) {
        __global const float *record =
            records + ((token * heads + head) * segments + segment) * RECORD;
        EACH_TILE
        for (int t = 0; t < DIM_TILES; t++)
            one.sum[t] = load_floats(record + t * TILE);
        one.most = record[DIM];
        one.total = record[DIM + 1];
        merge(&all, &one);
    }
    write_result(&all, values + out_at + token * out_stride + (size_t)head * head_dim, head_dim);
}
