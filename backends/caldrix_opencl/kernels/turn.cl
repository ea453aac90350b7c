// What precedes attention: norms of the heads of queries and keys, their rotary embedding, and the
// step's keys and values put where those of earlier steps are.
//
// Sixteen lanes have a head of a token: those of queries come first, then those of keys, then those
// of values. Norms may be null, and pairs none.

#define TURNING                                                                                    \
    __global float *values, ulong q_at, int q_stride, ulong k_at, int k_stride,                    \
    ulong v_at, int v_stride, ulong out_at, int out_stride,                                        \
    __global const float *q_norm, __global const float *k_norm, float eps,                         \
    __global const float *cosines, __global const float *sines, int pairs, int interleaved,        \
    __global kept *cached_keys, __global kept *cached_values,                                      \
    int heads, int kv_heads, int head_dim, int positions, __global const int2 *places

static inline void turn_head(
    int index, size_t token, __local float *shared, __local float *column, TURNING)
{
    const bool is_query = index < heads, is_value = index >= heads + kv_heads;
    const int head = is_query ? index : (index - heads) % kv_heads;
    __global const float *x =
        values + (is_query ? q_at + token * q_stride : is_value ? v_at + token * v_stride
                                                                : k_at + token * k_stride) +
        (size_t)head * head_dim;
    __global const float *norm = is_query ? q_norm : is_value ? 0 : k_norm;
    const int position = places[token].x;

    float scale = 1.0f;
    if (norm) {
        lanes squares = (lanes)(0.0f);
        for (int at = 0; at < head_dim; at += TILE) {
            const lanes v = load_some(x + at, head_dim - at);
            squares = fma(v, v, squares);
        }
        scale = 1.0f / sqrt(sum_of(squares, shared) / head_dim + eps);
    }
    for (int at = 0; at < DIM; at += TILE) {
        lanes v = load_some(x + at, head_dim - at);
        if (norm)
            v = v * scale * load_some(norm + at, head_dim - at);
        store_floats(v, column + at);
    }
    TOGETHER();

    const int turned = is_value ? 0 : pairs;
    __global const float *cosine = cosines + (size_t)position * pairs;
    __global const float *sine = sines + (size_t)position * pairs;
    __global float *out = values + out_at + token * out_stride + (size_t)head * head_dim;
    const size_t at = head_at(places[token].y, head, kv_heads, positions);
    const int place = place_of(position, positions);
    for (int d = LANE; d < DIM; d += LANES) {
        float v = column[d];
        if (d < 2 * turned) {
            const int pair = interleaved ? d / 2 : d % turned;
            const bool second = interleaved ? d % 2 : d >= turned;
            const int step = interleaved ? 1 : turned;
            v = second ? column[d - step] * sine[pair] + v * cosine[pair]
                       : v * cosine[pair] - column[d + step] * sine[pair];
        }
        if (is_query) {
            if (d < head_dim)
                out[d] = v;
        } else if (is_value)
            keep(v, at + (size_t)place * DIM + d, cached_values);
        else
            keep(v, at + (size_t)(place / TILE) * (DIM * TILE) + d * TILE + place % TILE,
                 cached_keys);
    }
}

KERNEL(LANES, 1) turn(TURNING)
{
    __local float shared[TILE], column[DIM];
    turn_head(get_global_id(1), get_global_id(2), shared, column,
              values, q_at, q_stride, k_at, k_stride, v_at, v_stride, out_at, out_stride,
              q_norm, k_norm, eps, cosines, sines, pairs, interleaved, cached_keys, cached_values,
              heads, kv_heads, head_dim, positions, places);
}
