// What the columns of TOKENS tokens come to with a tile of weights.
//
// The columns are cut into blocks of 32. Those of one SPLIT of the blocks are added up in their
// order, and the splits in theirs. So the order is the same for any number of tokens, and whether
// the splits are computed side by side or in turn.

#if INTEGERS

// What a tile's rows come to, for all tokens: sums of 16 columns are integers, and exact.
static inline void multiply(
    __global const uchar *tile, int columns, INPUT *x, int x_stride, int split, lanes *sums)
{
    for (int t = 0; t < TOKENS; t++)
        sums[t] = (lanes)(0.0f);
    for (int block = 0; block < columns / BLOCK; block++) {
        __global const uint *quants = quants_of(tile, columns, block);
#pragma unroll
        for (int part = 0; part < BLOCK / TILE; part++) {
            const Scales s = scales_of(tile, columns, block, part * TILE / GROUP);
            INPUT *column = x + (block * (BLOCK / TILE) + part) * PREPARED_TILE;
            int16 counts[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                counts[t] = (int16)(column[t * x_stride + PREPARED_COUNT]);
#pragma unroll
            for (int r = 0; r < TILE / 4; r++) {
                read_ahead(quants + (part * (TILE / 4) + r) * (TILE * BITS / 8));
                const words word = run_of(quants, part * (TILE / 4) + r);
                const words even = word & 0x00FF00FFu, odd = word >> 8 & 0x00FF00FFu;
#pragma unroll
                for (int t = 0; t < TOKENS; t++) {
                    INPUT *four = column + t * x_stride + 2 * r;
                    counts[t] += of_pairs(even, four[0]) + of_pairs(odd, four[1]);
                }
            }
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                const float scale = as_float(column[t * x_stride + PREPARED_SCALE]);
                sums[t] = fma(convert_float16(counts[t]), s.scale * scale, sums[t]);
#if MINIMA
                const float sum = as_float(column[t * x_stride + PREPARED_SUM]);
                sums[t] = fma(s.minimum, (lanes)(sum), sums[t]);
#endif
            }
        }
    }
}

#else

#define TAKE(t, w0, w1, w2, w3, x)                                                                 \
    even[t] = fma(w0, (lanes)(x.s0), even[t]);                                                     \
    odd[t] = fma(w1, (lanes)(x.s1), odd[t]);                                                       \
    even[t] = fma(w2, (lanes)(x.s2), even[t]);                                                     \
    odd[t] = fma(w3, (lanes)(x.s3), odd[t]);

// What a split adds up of a tile's rows, for all tokens, in two chains.
static inline void multiply(
    __global const uchar *tile, int columns, INPUT *x, int x_stride, int split, lanes *sums)
{
    const int blocks = (columns + BLOCK - 1) / BLOCK;
    lanes even[TOKENS], odd[TOKENS];
    for (int t = 0; t < TOKENS; t++)
        even[t] = odd[t] = (lanes)(0.0f);
    for (int block = split; block < blocks; block += SPLIT) {
        INPUT *column = x + block * BLOCK;
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

#endif
