// RMS norm of one part of a token's value, by PARTS groups of sixteen lanes side by side: columns of
// it, sixteen at a time, of which the groups take turns.
//
// ``residual_at`` is negative where nothing is added to the result.

KERNEL(LANES, PARTS) rms_norm(
    __global float *values, ulong x_at, int x_stride, ulong out_at, int out_stride,
    __global const float *weight, int width, float eps, long residual_at, int residual_stride)
{
    __local float shared[PARTS][TILE], squared[PARTS][TILE];
    const size_t token = get_global_id(2);
    const size_t first = (size_t)get_group_id(1) * width;
    const int part = get_local_id(1), begin = part * TILE, step = PARTS * TILE;
    __global const float *x = values + x_at + token * x_stride + first;
    __global float *out = values + out_at + token * out_stride + first;
    lanes squares = (lanes)(0.0f);
    for (int at = begin; at < width; at += step) {
        const lanes v = load_some(x + at, width - at);
        squares = fma(v, v, squares);
    }
#if PARTS > 1
    store_floats(squares, squared[part]);
    barrier(CLK_LOCAL_MEM_FENCE);
    squares = (lanes)(0.0f);
    for (int each = 0; each < PARTS; each++)
        squares += load_floats(squared[each]);
#endif
    const float scale = 1.0f / sqrt(sum_of(squares, shared[part]) / width + eps);
    for (int at = begin; at < width; at += step) {
        lanes v = load_some(x + at, width - at) * scale * load_some(weight + at, width - at);
        if (residual_at >= 0)
            v += load_some(values + residual_at + token * residual_stride + first + at, width - at);
        store_some(v, out + at, width - at);
    }
}
