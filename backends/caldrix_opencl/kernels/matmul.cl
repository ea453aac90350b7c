// The product of TOKENS tokens with tiles of weights: a work-group has one tile.
//
// The columns of a tile are cut into blocks of 32. Work-items of one SPLIT of the blocks add them
// up in their order, in two chains, and the splits are added in theirs. So the order is the same
// for any number of tokens.
//
// ``residual_at`` is negative where nothing is added; ``bias`` may be null. With GATED there are
// twice as many tiles: the first go through the ACTIVATION, and the others are multiplied by that.

#define TAKE(t, w0, w1, w2, w3, x)                                                                 \
    even[t] = fma(w0, (lanes)(x.s0), even[t]);                                                     \
    odd[t] = fma(w1, (lanes)(x.s1), odd[t]);                                                       \
    even[t] = fma(w2, (lanes)(x.s2), even[t]);                                                     \
    odd[t] = fma(w3, (lanes)(x.s3), odd[t]);

// What a split adds up of a tile's rows, for all tokens.
static inline void multiply(
    __global const uchar *tile, int columns, __global const float *x, int x_stride, lanes *sums)
{
    const int split = get_local_id(1);
    const int blocks = (columns + BLOCK - 1) / BLOCK;
    lanes even[TOKENS], odd[TOKENS];
    for (int t = 0; t < TOKENS; t++)
        even[t] = odd[t] = (lanes)(0.0f);
    for (int block = split; block < blocks; block += SPLIT) {
        __global const float *column = x + block * BLOCK;
#if FORMAT == QUANTS
        __global const uint *quants = quants_of(tile, columns, block);
        for (int group = 0; group < BLOCK / GROUP; group++) {
            const Scales s = scales_of(tile, columns, block, group);
#pragma unroll
            for (int r = 0; r < GROUP / 4; r++) {
                const int run = group * (GROUP / 4) + r;
                const words word = run_of(quants, run);
                const lanes w0 = WEIGHT(word, 0, s), w1 = WEIGHT(word, 1, s);
                const lanes w2 = WEIGHT(word, 2, s), w3 = WEIGHT(word, 3, s);
                for (int t = 0; t < TOKENS; t++) {
                    const float4 four = vload4(run, column + (size_t)t * x_stride);
                    TAKE(t, w0, w1, w2, w3, four)
                }
            }
        }
#else
        const int left = min(columns - block * BLOCK, BLOCK);
        for (int run = 0; run < left / 4; run++) {
            const int k = block * BLOCK + 4 * run;
            const lanes w0 = WEIGHT(tile, k, 0), w1 = WEIGHT(tile, k, 1);
            const lanes w2 = WEIGHT(tile, k, 2), w3 = WEIGHT(tile, k, 3);
            for (int t = 0; t < TOKENS; t++) {
                const float4 four = vload4(run, column + (size_t)t * x_stride);
                TAKE(t, w0, w1, w2, w3, four)
            }
        }
        // What follows a value's last column may be anything, so it is not read.
        for (int last = left / 4 * 4; last < left; last++) {
            const int k = block * BLOCK + left / 4 * 4;
            const lanes w0 = WEIGHT(tile, k, 0), w1 = WEIGHT(tile, k, 1), w2 = WEIGHT(tile, k, 2);
            const lanes w = last % 4 == 0 ? w0 : last % 4 == 1 ? w1 : w2;
            for (int t = 0; t < TOKENS; t++)
                even[t] = fma(w, (lanes)(column[(size_t)t * x_stride + last]), even[t]);
        }
#endif
    }
    for (int t = 0; t < TOKENS; t++)
        sums[t] = even[t] + odd[t];
}

__kernel void matmul(
    __global const uchar *weights, ulong tile_bytes, int columns, int tiles,
    __global const float *values, ulong x_at, int x_stride,
    __global float *out, ulong out_at, int out_stride,
    __global const float *bias, long residual_at, int residual_stride)
{
    const int tile = get_global_id(0) / LANES;
    const size_t token = (size_t)get_global_id(2) * TOKENS;
    __global const float *x = values + x_at + token * x_stride;
    lanes sums[TOKENS];
    multiply(weights + tile * tile_bytes, columns, x, x_stride, sums);
#if GATED
    lanes ups[TOKENS];
    multiply(weights + (tile + tiles) * tile_bytes, columns, x, x_stride, ups);
#endif
#if SPLIT > 1
    const int split = get_local_id(1);
    __local float partial[1 + GATED][TOKENS][SPLIT][TILE];
    for (int t = 0; t < TOKENS; t++) {
        partial[0][t][split][LANE] = sums[t];
#if GATED
        partial[1][t][split][LANE] = ups[t];
#endif
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (split > 0)
        return;
    for (int t = 0; t < TOKENS; t++)
        for (int other = 1; other < SPLIT; other++) {
            sums[t] += partial[0][t][other][LANE];
#if GATED
            ups[t] += partial[1][t][other][LANE];
#endif
        }
#endif
    for (int t = 0; t < TOKENS; t++) {
        lanes result = sums[t];
        if (bias)
            result += load_floats(bias + tile * TILE);
#if GATED
        if (bias)
            ups[t] += load_floats(bias + (tile + tiles) * TILE);
        result = activated(result, ACTIVATION) * ups[t];
#endif
        if (residual_at >= 0)
            result +=
                load_floats(values + residual_at + (token + t) * residual_stride + tile * TILE);
        store_floats(result, out + out_at + (token + t) * out_stride + tile * TILE);
    }
}
