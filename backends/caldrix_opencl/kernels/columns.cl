// Operations that look at one column of one token at a time: a work-item computes one.

__kernel void gate(
    __global float *values, ulong gate_at, int gate_stride, ulong up_at, int up_stride,
    ulong out_at, int out_stride, int width, int activation)
{
    const int column = get_global_id(0);
    const size_t token = get_global_id(1);
    if (column < width)
        values[out_at + token * out_stride + column] =
            activated(values[gate_at + token * gate_stride + column], activation) *
            values[up_at + token * up_stride + column];
}

__kernel void add(
    __global float *values, ulong a_at, int a_stride, ulong b_at, int b_stride,
    ulong out_at, int out_stride, int width)
{
    const int column = get_global_id(0);
    const size_t token = get_global_id(1);
    if (column < width)
        values[out_at + token * out_stride + column] =
            values[a_at + token * a_stride + column] + values[b_at + token * b_stride + column];
}

// Columns ``start`` and after of each of the equal parts of a value.
__kernel void part(
    __global float *values, ulong x_at, int x_stride, ulong out_at, int out_stride,
    int width, int taken, int start, int whole)
{
    const int column = get_global_id(0);
    const size_t token = get_global_id(1);
    if (column < width)
        values[out_at + token * out_stride + column] =
            values[x_at + token * x_stride + column / taken * whole + start + column % taken];
}

// The tokens whose logits are asked for.
__kernel void pick(
    __global float *values, ulong x_at, int x_stride, ulong out_at, int out_stride, int width,
    __global const int *wanted)
{
    const int column = get_global_id(0);
    const size_t token = get_global_id(1);
    if (column < width)
        values[out_at + token * out_stride + column] =
            values[x_at + (size_t)wanted[token] * x_stride + column];
}

// Pairs of each head's columns turn by an angle that grows with the position; the others stay.
__kernel void rope(
    __global float *values, ulong x_at, int x_stride, ulong out_at, int out_stride, int width,
    int head_dim, __global const float *cosines, __global const float *sines, int pairs,
    int interleaved, __global const int2 *places)
{
    const int item = get_global_id(0);
    const size_t token = get_global_id(1);
    if (item >= width)
        return;
    // An item has a pair of a head, or one column of those that stay.
    const int items = head_dim - pairs;
    const int head = item / items, j = item % items;
    __global const float *x = values + x_at + token * x_stride + (size_t)head * head_dim;
    __global float *out = values + out_at + token * out_stride + (size_t)head * head_dim;
    if (j >= pairs) {
        out[pairs + j] = x[pairs + j];
        return;
    }
    const int first = interleaved ? 2 * j : j, second = interleaved ? 2 * j + 1 : j + pairs;
    const size_t at = (size_t)places[token].x * pairs + j;
    const float a = x[first], b = x[second];
    out[first] = a * cosines[at] - b * sines[at];
    out[second] = a * sines[at] + b * cosines[at];
}
