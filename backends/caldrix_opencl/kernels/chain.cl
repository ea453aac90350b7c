// Attention and up to four products after it, of one token, by work-groups that run side by side on
// a CPU. Where there is no attention it has no heads, and a product that is not there no tiles.
//
// A launch costs a processor as much as a small product: its threads fall asleep and are woken.
// Here groups take parts of one operation as long as there are any, wait until all of them are
// done, and go on with the next. A group only ever waits for parts that another one is computing,
// and one that begins late finds nothing left to do: so all ends, however many run at once. One that
// has waited for long leaves, since its core may be what another one, put aside in the middle of
// its part, waits for; whoever is left does the rest.
//
// Two counters belong to each operation: of parts that were taken, and of parts that are done.

#define PRODUCTS 4

typedef struct {
    __global const uchar *weights;
    ulong tile_bytes;
    int columns, tiles;
    ulong x_at, out_at;
    __global const float *bias;
    long residual_at;
    __global const float *norm;
    float eps;
    int gate;
} Product;

#define PRODUCT(n)                                                                                 \
    , __global const uchar *weights##n, ulong tile_bytes##n, int columns##n, int tiles##n,         \
    ulong x_at##n, ulong out_at##n, __global const float *bias##n, long residual_at##n,            \
    __global const float *norm##n, float eps##n, int gate##n

#define COMPUTE(n)                                                                                 \
    if (goes_on) {                                                                                 \
        const Product p = {weights##n, tile_bytes##n, columns##n, tiles##n, x_at##n, out_at##n,    \
                           bias##n, residual_at##n, norm##n, eps##n, gate##n};                     \
        goes_on = compute(&p, values, own, counters + 2 * n);                                      \
    }

// Whether all of an operation came to be done, of which this group did some, before it had waited
// for long: PATIENCE is how often it looks, some nanoseconds each, where parts are small.
static inline bool is_done(volatile __global int *done, int own, int all, ulong patience)
{
    if (atomic_add(done, own) + own < all)
        for (ulong looks = 0; *done < all; looks++)
            if (looks == patience)
                return false;
    // What the others wrote is there to be read after this.
    atomic_add(done, 0);
    return true;
}

static inline lanes row_sums(const Product *p, int tile, int row_tile, INPUT *x)
{
    lanes sums;
    multiply(p->weights + tile * p->tile_bytes, p->columns, x, 0, 0, &sums);
    return p->bias ? sums + load_floats(p->bias + row_tile * TILE) : sums;
}

static inline void compute_tile(const Product *p, int tile, __global float *values, INPUT *x)
{
    lanes result;
    if (p->gate == UNGATED)
        result = row_sums(p, tile, tile, x);
    else
        result = activated(row_sums(p, 2 * tile, tile, x), p->gate) *
                 row_sums(p, 2 * tile + 1, tile + p->tiles, x);
    if (p->residual_at >= 0)
        result += load_floats(values + p->residual_at + tile * TILE);
    store_floats(result, values + p->out_at + tile * TILE);
}

static inline int tiles_of_short_run(int tiles)
{
    return max(tiles / (8 * (int)get_num_groups(0)), 1);
}

// Which tiles are taken at a turn: a long run at first, so that memory is read in one go, and then
// short ones, so that all groups end together.
static inline int taken_before(int turn, int tiles)
{
    const int groups = get_num_groups(0);
    const int large = tiles * 3 / 4 / groups, small = tiles_of_short_run(tiles);
    return min(large * min(turn, groups) + small * max(turn - groups, 0), tiles);
}

// This group's share of a product, and whether it goes on with what follows.
static inline bool compute(
    const Product *p, __global float *values, __local prepared *own, volatile __global int *counters)
{
    int computed = 0, first, last;
    do {
        const int turn = atomic_inc(counters);
        first = taken_before(turn, p->tiles);
        last = taken_before(turn + 1, p->tiles);
        if (!computed && first < last)
            prepare(values + p->x_at, p->columns, p->norm, p->eps, own);
        for (int tile = first; tile < last; tile++)
            compute_tile(p, tile, values, own);
        computed += last - first;
    } while (last < p->tiles);
    // As often again for each 256 KiB of a part, which takes several times as long as reading them.
    const ulong bytes = tiles_of_short_run(p->tiles) * p->tile_bytes;
    return is_done(counters + 1, computed, p->tiles, PATIENCE * (1 + (bytes >> 18)));
}

__kernel void chain(
    __global float *values, __local prepared *own, volatile __global int *counters,
    ulong q_at, ulong k_at, ulong v_at, ulong turned_at, ulong attended_at,
    __global const float *q_norm, __global const float *k_norm, float eps,
    __global const float *cosines, __global const float *sines, int pairs, int interleaved,
    __global kept *cached_keys, __global kept *cached_values, int heads, int kv_heads,
    int head_dim, int positions, int window, float scale, __global const int2 *places
    PRODUCT(0) PRODUCT(1) PRODUCT(2) PRODUCT(3))
{
    __local float *column = (__local float *)own, *shared = column + DIM;
    volatile __global int *turns = counters + 2 * PRODUCTS, *attends = turns + 2;
    int done = 0;
    for (int index; (index = atomic_inc(turns)) < heads + 2 * kv_heads; done++)
        turn_head(index, 0, shared, column, values, q_at, 0, k_at, 0, v_at, 0, turned_at, 0,
                  q_norm, k_norm, eps, cosines, sines, pairs, interleaved,
                  cached_keys, cached_values, heads, kv_heads, head_dim, positions, places);
    bool goes_on = is_done(turns + 1, done, heads + 2 * kv_heads, PATIENCE);
    if (goes_on) {
        done = 0;
        for (int head; (head = atomic_inc(attends)) < heads; done++)
            attend_head(head, 0, column, shared, values, turned_at, 0, attended_at, 0,
                        cached_keys, cached_values, heads, kv_heads, head_dim, positions, window,
                        scale, places, 0, 0);
        goes_on = is_done(attends + 1, done, heads, PATIENCE);
    }
    COMPUTE(0)
    COMPUTE(1)
    COMPUTE(2)
    COMPUTE(3)
    // The last group to leave makes all ready for the next launch.
    volatile __global int *left = attends + 2;
    if (atomic_inc(left) == get_num_groups(0) - 1)
        for (; left >= counters; left--)
            *left = 0;
}
