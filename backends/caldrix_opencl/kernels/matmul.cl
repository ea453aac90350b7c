// The product of TOKENS tokens with tiles of weights.
//
// On a CPU a work-group has ``each`` tiles. On a GPU it has the splits of one tile side by side, or,
// of MANY tokens, whole tiles side by side, whose splits are computed in turn: then all of a wave
// read the same columns of the same tokens, which costs it no more than one of them.
//
// ``residual_at`` is negative where nothing is added; ``bias`` may be null. With GATED there are
// twice as many tiles, in pairs: the first of each goes through the ACTIVATION, and the other is
// multiplied by that; biases are those of all first ones, then of all others.

#define EACH_TOKEN _Pragma("unroll") for (int t = 0; t < TOKENS; t++)

typedef struct {
    lanes sums[TOKENS];
#if GATED
    lanes ups[TOKENS];
#endif
} Products;

static inline void multiply_tile(
    Products *p, __global const uchar *weights, ulong tile_bytes, int columns, int tile,
    INPUT *x, int stride, int split)
{
    __global const uchar *at = weights + tile * tile_bytes * (1 + GATED);
    multiply(at, columns, x, stride, split, p->sums);
#if GATED
    multiply(at + tile_bytes, columns, x, stride, split, p->ups);
#endif
}

static inline void add_products(Products *p, const Products *other)
{
    EACH_TOKEN
    {
        p->sums[t] += other->sums[t];
#if GATED
        p->ups[t] += other->ups[t];
#endif
    }
}

// ``residual`` may be null as well.
static inline void write_results(
    Products *p, int tile, int tiles, __global const float *bias,
    __global const float *residual, int residual_stride, __global float *out, int out_stride)
{
    EACH_TOKEN
    {
        lanes result = p->sums[t];
        if (bias)
            result += load_floats(bias + tile * TILE);
#if GATED
        lanes up = p->ups[t];
        if (bias)
            up += load_floats(bias + (tile + tiles) * TILE);
        result = activated(result, ACTIVATION) * up;
#endif
        if (residual)
            result += load_floats(residual + (size_t)t * residual_stride + tile * TILE);
        store_floats(result, out + (size_t)t * out_stride + tile * TILE);
    }
}

#if VECTOR == TILE
KERNEL(1, 1)
#elif MANY
KERNEL(TILE * TILES, 1)
#else
KERNEL(TILE, SPLIT)
#endif
matmul(
    __global const uchar *weights, ulong tile_bytes, int columns, int tiles, int each,
    __global const float *values, ulong x_at, int x_stride,
    __global float *out, ulong out_at, int out_stride,
    __global const float *bias, long residual_at, int residual_stride
#if PREPARED
    , __local prepared *own, __global const float *norm, float eps
#endif
    )
{
    // A group has one place in this direction, which a compiler takes no item's number for.
    const size_t token = (size_t)get_group_id(2) * TOKENS;
    __global const float *given = values + x_at + token * x_stride;
    __global const float *residual =
        residual_at < 0 ? 0 : values + residual_at + token * residual_stride;
    __global float *results = out + out_at + token * out_stride;
    Products products;

#if VECTOR == TILE
    const int first = get_group_id(0) * each, last = min(first + each, tiles);
#if PREPARED
    const int stride = PREPARED_SIZE(columns);
    for (int t = 0; t < TOKENS; t++)
        prepare(given + (size_t)t * x_stride, columns, norm, eps, own + t * stride);
    INPUT *x = own;
#else
    const int stride = x_stride;
    INPUT *x = given;
#endif
    for (int tile = first; tile < last; tile++) {
        multiply_tile(&products, weights, tile_bytes, columns, tile, x, stride, 0);
        write_results(
            &products, tile, tiles, bias, residual, residual_stride, results, out_stride);
    }

#elif MANY
    const int tile = get_global_id(0) / TILE;
    if (tile >= tiles)
        return;
    Products part;
    multiply_tile(&products, weights, tile_bytes, columns, tile, given, x_stride, 0);
    for (int split = 1; split < SPLIT; split++) {
        multiply_tile(&part, weights, tile_bytes, columns, tile, given, x_stride, split);
        add_products(&products, &part);
    }
    write_results(&products, tile, tiles, bias, residual, residual_stride, results, out_stride);

#else
    __local float shared[1 + GATED][TOKENS][SPLIT][TILE];
    const int tile = get_group_id(0), split = get_local_id(1);
    multiply_tile(&products, weights, tile_bytes, columns, tile, given, x_stride, split);
    EACH_TOKEN
    {
        shared[0][t][split][LANE] = products.sums[t];
#if GATED
        shared[1][t][split][LANE] = products.ups[t];
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (split > 0)
        return;
    for (int other = 1; other < SPLIT; other++) {
        Products part;
        EACH_TOKEN
        {
            part.sums[t] = shared[0][t][other][LANE];
#if GATED
            part.ups[t] = shared[1][t][other][LANE];
#endif
        }
        add_products(&products, &part);
    }
    write_results(&products, tile, tiles, bias, residual, residual_stride, results, out_stride);
#endif
}
