// What a gate goes through. TYPE is float, or the lanes of a work-item.

#define SILU 0
#define GELU_TANH 1
#define SIGMOID 2
#define UNGATED -1

#ifndef TYPE
#define TYPE lanes
#endif

static inline TYPE activated(TYPE x, int activation)
{
    if (activation == SILU)
        return x / (1.0f + exp(-x));
    if (activation == GELU_TANH)
        return 0.5f * x * (1.0f + tanh(0.7978845608028654f * fma(0.044715f * x * x, x, x)));
    return 1.0f / (1.0f + exp(-x));
}
