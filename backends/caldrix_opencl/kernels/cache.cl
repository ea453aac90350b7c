// A layer's keys and values, and where they lie.
//
// Of each row and key/value head, ``positions`` (whole tiles of them) by DIM (whole tiles, filled up
// with zeros): keys as ``[position tiles][DIM][16 positions]``, values as ``[positions][DIM]``. That
// is a ring: positions past its end lie where those before them by its size did.

#if KV_HALF
typedef half kept;
#define load_kept load_halves
#define keep(value, at, to) vstore_half((value), (at), (to))
#else
typedef float kept;
#define load_kept load_floats
#define keep(value, at, to) ((to)[at] = (value))
#endif

static inline size_t head_at(int row, int head, int heads, int positions)
{
    return ((size_t)row * heads + head) * positions * DIM;
}

static inline int place_of(int position, int positions)
{
    return position < positions ? position : position % positions;
}
