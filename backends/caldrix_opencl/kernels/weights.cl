// Four columns of a tile of weights, as caldrix_cpu/tiles/layouts.py lays them out.
//
// FORMAT is FLOAT32, FLOAT16, BFLOAT16 or QUANTS. Of quants: BITS of each, GROUP columns that share
// a scale, OFFSET that is taken from them, and whether there are MINIMA and TWO_LEVELs of scales.
// A value is always fma(quant, scale, minimum), which rounds nothing that the file's own does not.

#define FLOAT32 0
#define FLOAT16 1
#define BFLOAT16 2
#define QUANTS 3

#define BLOCK 32

#if FORMAT == QUANTS

typedef struct {
    lanes scale, minimum;
} Scales;

#define SUPER_BYTES (TWO_LEVEL ? 32 * (1 + MINIMA) : 0)
#define SCALE_BYTES ((TWO_LEVEL ? 16 : 32) * (1 + MINIMA) * (BLOCK / GROUP))
#define QUANT_BYTES (TILE * BLOCK * BITS / 8)
#define IN_LINES(size) (((size) + 63) / 64 * 64)

static inline Scales scales_of(__global const uchar *tile, int columns, int block, int group)
{
    Scales s;
#if TWO_LEVEL
    __global const half *top =
        (__global const half *)(tile + (size_t)(block / 8) * SUPER_BYTES);
    __global const uchar *own = tile + IN_LINES(columns / 256 * SUPER_BYTES) +
                                (size_t)block * SCALE_BYTES + group * 16 * (1 + MINIMA);
    s.scale = load_halves(top) * floats_of_chars(own);
#if MINIMA
    s.minimum = -(load_halves(top + 16) * floats_of_uchars(own + 16));
#else
    s.minimum = -(float)OFFSET * s.scale;
#endif
#else
    __global const half *own = (__global const half *)(tile + (size_t)block * SCALE_BYTES);
    s.scale = load_halves(own);
#if MINIMA
    s.minimum = load_halves(own + 16);
#else
    s.minimum = -(float)OFFSET * s.scale;
#endif
#endif
    return s;
}

static inline __global const uint *quants_of(__global const uchar *tile, int columns, int block)
{
    const size_t scales = IN_LINES(columns / 256 * SUPER_BYTES) +
                          IN_LINES((size_t)columns / BLOCK * SCALE_BYTES);
    return (__global const uint *)(tile + scales + (size_t)block * QUANT_BYTES);
}

// The bits of a plane that hold the run's four columns, each in a byte of its own.
#define PLANE(quants, first, width, run)                                                           \
    (load_words((quants) + TILE * ((first) + (run) % (width))) >> ((width) * ((run) / (width))) &  \
     (uint)(0x01010101u * ((1u << (width)) - 1)))

static inline words run_of(__global const uint *quants, int run)
{
#if BITS == 8
    return load_words(quants + TILE * run);
#elif BITS == 6
    return PLANE(quants, 0, 4, run) | PLANE(quants, 4, 2, run) << 4;
#elif BITS == 5
    return PLANE(quants, 0, 4, run) | PLANE(quants, 4, 1, run) << 4;
#elif BITS == 4
    return PLANE(quants, 0, 4, run);
#elif BITS == 3
    return PLANE(quants, 0, 2, run) | PLANE(quants, 2, 1, run) << 2;
#else
    return PLANE(quants, 0, 2, run);
#endif
}

#define WEIGHT(word, column, s)                                                                    \
    fma(to_floats((word) >> (uint)(8 * (column)) & (uint)0xFF), (s).scale, (s).minimum)

#elif FORMAT == BFLOAT16

#define BYTES 2
#define WEIGHT(tile, k, column)                                                                    \
    bits_to_floats((column) % 2                                                                    \
        ? load_words((__global const uint *)(tile) + TILE * (((k) + (column)) / 2)) & 0xFFFF0000u  \
        : load_words((__global const uint *)(tile) + TILE * (((k) + (column)) / 2)) << 16)

#elif FORMAT == FLOAT16

#define BYTES 2
#define WEIGHT(tile, k, column)                                                                    \
    load_halves((__global const half *)(tile) + TILE * (size_t)((k) + (column)))

#else

#define BYTES 4
#define WEIGHT(tile, k, column)                                                                    \
    load_floats((__global const float *)(tile) + TILE * (size_t)((k) + (column)))

#endif
