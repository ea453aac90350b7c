// A causal convolution of each column with TAPS weights of its own: a work-item has one column of
// all tokens of a slice, one after another.
//
// A row's state is its last TAPS - 1 inputs, ``[TAPS - 1][width]``; weights are ``[TAPS][width]``.

__kernel void convolve(
    __global float *values, ulong x_at, int x_stride, ulong out_at, int out_stride, int width,
    __global const float *weights, int activation, __global float *states,
    __global const int4 *slices)
{
    const int column = get_global_id(0);
    // The slice's first token, how many it has, its row and where in it they begin.
    const int4 slice = slices[get_global_id(1)];
    if (column >= width)
        return;
    __global float *state = states + (size_t)slice.z * (TAPS - 1) * width + column;
    float seen[TAPS], weight[TAPS];
    for (int tap = 0; tap < TAPS; tap++)
        weight[tap] = weights[(size_t)tap * width + column];
    for (int tap = 0; tap < TAPS - 1; tap++)
        seen[tap] = slice.w > 0 ? state[(size_t)tap * width] : 0.0f;
    for (int t = 0; t < slice.y; t++) {
        const size_t token = slice.x + t;
        seen[TAPS - 1] = values[x_at + token * x_stride + column];
        float sum = 0.0f;
        for (int tap = 0; tap < TAPS; tap++)
            sum = fma(weight[tap], seen[tap], sum);
        values[out_at + token * out_stride + column] = activated(sum, activation);
        for (int tap = 0; tap < TAPS - 1; tap++)
            seen[tap] = seen[tap + 1];
    }
    for (int tap = 0; tap < TAPS - 1; tap++)
        state[(size_t)tap * width] = seen[tap];
}
