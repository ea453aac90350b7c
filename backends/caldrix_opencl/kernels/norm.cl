// RMS norm of one part of a token's value, by a group of lanes: columns of it, sixteen at a time.
//
// ``residual_at`` is negative where nothing is added to the result.

__kernel void rms_norm(
    __global float *values, ulong x_at, int x_stride, ulong out_at, int out_stride,
    __global const float *weight, int width, float eps, long residual_at, int residual_stride)
{
    __local float shared[TILE];
    const size_t token = get_global_id(2);
    const size_t first = (size_t)get_global_id(1) * width;
    __global const float *x = values + x_at + token * x_stride + first;
    __global float *out = values + out_at + token * out_stride + first;
    lanes squares = (lanes)(0.0f);
    for (int at = 0; at < width; at += TILE) {
        const lanes v = load_some(x + at, width - at);
        squares = fma(v, v, squares);
    }
    const float scale = 1.0f / sqrt(sum_of(squares, shared) / width + eps);
    for (int at = 0; at < width; at += TILE) {
        lanes v = load_some(x + at, width - at) * scale * load_some(weight + at, width - at);
        if (residual_at >= 0)
            v += load_some(values + residual_at + token * residual_stride + first + at, width - at);
        store_some(v, out + at, width - at);
    }
}
