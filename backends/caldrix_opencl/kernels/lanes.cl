// Sixteen lanes: the rows of a tile, positions of a cache or columns of a value.
//
// VECTOR of them belong to one work-item. On a CPU that is all sixteen, as a vector of the
// processor; on a GPU one, and sixteen work-items side by side work together. Kernels are written
// once for both. Products are fused only where fma() says so: a token's bits depend on no compiler.

#pragma OPENCL FP_CONTRACT OFF

#define TILE 16
#define LANES (TILE / VECTOR)

// A kernel whose groups are so large, which spares a group that is one wave its barriers.
#define KERNEL(x, y) __kernel __attribute__((reqd_work_group_size(x, y, 1))) void

static inline float sum_of_all(float16 v)
{
    const float8 a = v.lo + v.hi;
    const float4 b = a.lo + a.hi;
    const float2 c = b.lo + b.hi;
    return c.x + c.y;
}

static inline float most_of_all(float16 v)
{
    const float8 a = fmax(v.lo, v.hi);
    const float4 b = fmax(a.lo, a.hi);
    const float2 c = fmax(b.lo, b.hi);
    return fmax(c.x, c.y);
}

#if VECTOR == 16

typedef float16 lanes;
typedef uint16 words;
#define LANE 0
#define load_floats(p) vload16(0, (p))
#define load_halves(p) vload_half16(0, (p))
#define load_words(p) vload16(0, (p))
#define store_floats(v, p) vstore16((v), 0, (p))
#define floats_of_chars(p) convert_float16(vload16(0, (__global const char *)(p)))
#define floats_of_uchars(p) convert_float16(vload16(0, (__global const uchar *)(p)))
#define to_floats(w) convert_float16(w)
#define bits_to_floats(w) as_float16(w)
#define TOGETHER()

#define sum_of(v, shared) sum_of_all(v)
#define most_of(v, shared) most_of_all(v)

static inline lanes load_some(__global const float *p, int count)
{
    if (count >= TILE)
        return vload16(0, p);
    float each[TILE];
    for (int i = 0; i < TILE; i++)
        each[i] = i < count ? p[i] : 0.0f;
    return vload16(0, each);
}

static inline void store_some(lanes v, __global float *p, int count)
{
    if (count >= TILE) {
        vstore16(v, 0, p);
        return;
    }
    float each[TILE];
    vstore16(v, 0, each);
    for (int i = 0; i < count; i++)
        p[i] = each[i];
}

static inline lanes only_from_to(lanes v, int first, int last, float other)
{
    const int16 at = (int16)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return select((float16)(other), v, at >= first && at <= last);
}

// A processor reads ahead by itself, but stops at the end of each page.
#define AHEAD 1024

static inline void read_ahead(__global const uint *p)
{
#ifdef __clang__
    __builtin_prefetch((const void *)((ulong)p + AHEAD));
#endif
}

#else

#define read_ahead(p)

typedef float lanes;
typedef uint words;
#define LANE ((int)get_local_id(0) % LANES)
#define load_floats(p) ((p)[LANE])
#define load_halves(p) vload_half(LANE, (p))
#define load_words(p) ((p)[LANE])
#define store_floats(v, p) ((p)[LANE] = (v))
#define floats_of_chars(p) ((float)((__global const char *)(p))[LANE])
#define floats_of_uchars(p) ((float)((__global const uchar *)(p))[LANE])
#define to_floats(w) ((float)(w))
#define bits_to_floats(w) as_float(w)
#define TOGETHER() barrier(CLK_LOCAL_MEM_FENCE)

// All lanes get the result.
#define sum_of(v, shared) sum_of_all(together(v, shared))
#define most_of(v, shared) most_of_all(together(v, shared))

static inline float16 together(lanes v, __local float *shared)
{
    TOGETHER();
    shared[LANE] = v;
    TOGETHER();
    return vload16(0, shared);
}

static inline lanes load_some(__global const float *p, int count)
{
    return LANE < count ? p[LANE] : 0.0f;
}

static inline void store_some(lanes v, __global float *p, int count)
{
    if (LANE < count)
        p[LANE] = v;
}

static inline lanes only_from_to(lanes v, int first, int last, float other)
{
    return LANE >= first && LANE <= last ? v : other;
}

#endif
