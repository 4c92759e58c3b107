/* gelu.h - the functions of gelu.c and their slopes, for the kernels of CPUs. */
#ifndef OP_ACT_GELU_H
#define OP_ACT_GELU_H

#include "op/vmath.h"

#define GELU_ROOT_HALF 0x1.6a09e6p-1f
#define GELU_ONE_OVER_ROOT_2_PI 0x1.988454p-2f
#define GELU_ROOT_2_OVER_PI 0x1.988454p-1f
#define GELU_CUBIC 0.044715f

/* The distribution function of the normal distribution. */
OP_INLINE float gelu_normal(float x)
{
    return 0.5f * (1.0f + vm_erf(x * GELU_ROOT_HALF));
}

OP_INLINE float gelu_slope(float x)
{
    return gelu_normal(x) + x * (GELU_ONE_OVER_ROOT_2_PI * vm_exp(-0.5f * (x * x)));
}

/* The tanh of its approximation. */
OP_INLINE float gelu_tanh(float x)
{
    return vm_tanh(GELU_ROOT_2_OVER_PI * (x + GELU_CUBIC * (x * (x * x))));
}

OP_INLINE float gelu_tanh_slope(float x)
{
    float t = gelu_tanh(x), du = GELU_ROOT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * (x * x));

    return 0.5f * ((1.0f + t) + x * ((1.0f - t) * (1.0f + t) * du));
}

#endif
