// What a work-group of a CPU makes of its tokens before it multiplies them, in memory of its own.
//
// With quants they become INTEGERS: sixteen columns share a scale, and each is a whole number of it
// in 16 bits. A processor multiplies and adds pairs of such numbers at once, while it would turn
// quants into floats more slowly than it reads them. One token goes through the norm before the
// product here, if there is one; several do so once for all groups, in a launch of its own.

#define INTEGERS (VECTOR == TILE && FORMAT == QUANTS)
#define PREPARED (INTEGERS || VECTOR == TILE && TOKENS == 1)

#if !PREPARED

#define INPUT __global const float

#else

// In the order of sums of ``norm.cl``; ``norm`` may be null.
static inline float norm_scale(
    __global const float *x, int columns, __global const float *norm, float eps)
{
    if (!norm)
        return 1.0f;
    lanes squares = (lanes)(0.0f);
    for (int at = 0; at < columns; at += TILE) {
        const lanes v = load_some(x + at, columns - at);
        squares = fma(v, v, squares);
    }
    return 1.0f / sqrt(sum_of_all(squares) / columns + eps);
}

// The columns from ``at`` on.
static inline lanes normed(
    __global const float *x, int columns, int at, __global const float *norm, float scale)
{
    const lanes v = load_some(x + at, columns - at);
    return norm ? v * scale * load_some(norm + at, columns - at) : v;
}

#if INTEGERS

// Of sixteen columns: eight pairs, then what the sum starts from, the scale and the scaled sum. Of
// four columns, the first and the third are a pair, and the others: so a tile's words have them.
typedef int prepared;
#define INPUT __local const int
#define PREPARED_TILE 12
#define PREPARED_SIZE(columns) ((columns) / TILE * PREPARED_TILE)
#define PREPARED_COUNT 8
#define PREPARED_SCALE 9
#define PREPARED_SUM 10

// Sixteen products with a byte each fit into 32 bits.
#define MOST 32767.0f
// What is smaller has no inverse.
#define LEAST 1e-30f

static inline void prepare(
    __global const float *x, int columns, __global const float *norm, float eps, __local int *out)
{
    const float by = norm_scale(x, columns, norm, eps);
    for (int at = 0; at < columns; at += TILE, out += PREPARED_TILE) {
        const lanes v = normed(x, columns, at, norm, by);
        // Numbers without a sign are in the order of their bits, and NaN is the largest.
        const int16 size = as_int16(fabs(v));
        const int8 a = max(size.lo, size.hi);
        const int4 b = max(a.lo, a.hi);
        const int2 c = max(b.lo, b.hi);
        const float most = as_float(max(c.x, c.y)), scale = most / MOST;
        const int16 whole = convert_int16_rte(v * (most < LEAST ? 0.0f : MOST / most));
        const int8 d = whole.lo + whole.hi;
        const int4 e = d.lo + d.hi;
        const int2 f = e.lo + e.hi;
        const int sum = f.x + f.y;
        const int8 first = whole.s014589cd, second = whole.s2367abef;
        vstore8((first & 0xFFFF) | second << 16, 0, out);
        out[PREPARED_COUNT] = -OFFSET * sum;
        out[PREPARED_SCALE] = as_int(scale);
        out[PREPARED_SUM] = as_int(scale * sum);
    }
}

// Of each lane the sum of two products: of the halves of a word of ``quants``, and those of
// ``pair``.
static inline int16 of_pairs(words quants, int pair)
{
#ifdef __AVX512BW__
    typedef short shorts __attribute__((vector_size(64)));
    return __builtin_astype(
        __builtin_ia32_pmaddwd512(__builtin_astype(quants, shorts),
                                  __builtin_astype((int16)(pair), shorts)), int16);
#elif defined(__AVX2__)
    typedef short shorts __attribute__((vector_size(32)));
    const shorts both = __builtin_astype((int8)(pair), shorts);
    return (int16)(
        __builtin_astype(__builtin_ia32_pmaddwd256(__builtin_astype(quants.lo, shorts), both), int8),
        __builtin_astype(__builtin_ia32_pmaddwd256(__builtin_astype(quants.hi, shorts), both), int8));
#else
    const short2 both = as_short2(pair);
    return as_int16(quants & 0xFFFFu) * both.x + as_int16(quants >> 16u) * both.y;
#endif
}

#else

typedef float prepared;
#define INPUT __local const float
#define PREPARED_SIZE(columns) (((columns) + TILE - 1) / TILE * TILE)

static inline void prepare(
    __global const float *x, int columns, __global const float *norm, float eps, __local float *out)
{
    const float by = norm_scale(x, columns, norm, eps);
    for (int at = 0; at < columns; at += TILE)
        store_floats(normed(x, columns, at, norm, by), out + at);
}

#endif
#endif
