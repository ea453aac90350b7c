// The gated delta rule (Yang, Kautz and Hatamizadeh, 2024), a token after the other.
//
// Sixteen lanes have sixteen value columns of a head, of all tokens of a slice. A row's state is
// ``[heads][tiles of value columns][KEY_DIM][16]``.

// One part of a token's queries or keys, of length one and then scaled.
static inline void unit(
    __local float *out, __global const float *x, float eps, float scale, __local float *shared)
{
    lanes squares = (lanes)(0.0f);
    for (int at = 0; at < KEY_DIM; at += TILE) {
        const lanes v = load_some(x + at, KEY_DIM - at);
        squares = fma(v, v, squares);
    }
    const float length = sqrt(sum_of(squares, shared) + eps);
    for (int d = LANE; d < KEY_DIM; d += LANES)
        out[d] = x[d] / length * scale;
}

static inline float softplus(float x)
{
    return fmax(x, 0.0f) + log1p(exp(-fabs(x)));
}

KERNEL(LANES, 1) delta_rule(
    __global float *values, ulong q_at, int q_stride, ulong k_at, int k_stride,
    ulong v_at, int v_stride, ulong decay_at, int decay_stride,
    ulong strength_at, int strength_stride, ulong out_at, int out_stride,
    __global const float *rates, __global const float *rate_biases,
    int heads, int key_heads, int value_dim, float scale, float eps, int tiled,
    __global float *states, __global const int4 *slices)
{
    __local float query[KEY_DIM], key[KEY_DIM], shared[TILE];
    const int tile = get_group_id(0), head = get_global_id(1), tiles = get_num_groups(0);
    // The slice's first token, how many it has, its row and where in it they begin.
    const int4 slice = slices[get_global_id(2)];
    const int key_head = tiled ? head % key_heads : head / (heads / key_heads);
    const int column = head * value_dim + tile * TILE, count = value_dim - tile * TILE;
    __global float *state =
        states + (((size_t)slice.z * heads + head) * tiles + tile) * (KEY_DIM * TILE);
    const float rate = rates[head], bias = rate_biases[head];
    if (slice.y > 0 && slice.w == 0)
        for (int d = 0; d < KEY_DIM; d++)
            store_floats((lanes)(0.0f), state + d * TILE);

    for (int t = 0; t < slice.y; t++) {
        const size_t token = slice.x + t;
        TOGETHER();
        unit(query, values + q_at + token * q_stride + key_head * KEY_DIM, eps, scale, shared);
        unit(key, values + k_at + token * k_stride + key_head * KEY_DIM, eps, 1.0f, shared);
        TOGETHER();
        const float kept =
            exp(-rate * softplus(values[decay_at + token * decay_stride + head] + bias));
        const float strength =
            1.0f / (1.0f + exp(-values[strength_at + token * strength_stride + head]));
        lanes known = (lanes)(0.0f), result = (lanes)(0.0f);
        for (int d = 0; d < KEY_DIM; d++)
            known = fma(load_floats(state + d * TILE) * kept, (lanes)(key[d]), known);
        const lanes v = load_some(values + v_at + token * v_stride + column, count);
        const lanes added = strength * (v - known);
        for (int d = 0; d < KEY_DIM; d++) {
            const lanes changed =
                fma(added, (lanes)(key[d]), load_floats(state + d * TILE) * kept);
            store_floats(changed, state + d * TILE);
            result = fma(changed, (lanes)(query[d]), result);
        }
        store_some(result, values + out_at + token * out_stride + column, count);
    }
}
