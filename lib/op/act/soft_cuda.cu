/* soft_cuda.cu - see soft.c. */
#include "op/act/act_cuda.cuh"

__device__ static inline float mish_gate(float x)
{
    float e = expf(x > 20.0f ? 20.0f : x), n = e * (e + 2.0f);

    return n / (n + 2.0f);
}

__device__ static inline float mish_slope(float x)
{
    float t = mish_gate(x);

    return t + x * ((1.0f - t) * (1.0f + t) * act_sigmoid(x));
}

__device__ static inline float swish_slope(float x)
{
    float s = act_sigmoid(x);

    return s * (1.0f + x * (1.0f - s));
}

ACT_CUDA(softplus, (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))), in, d * act_sigmoid(v))
ACT_CUDA(softsign, x / (1.0f + fabsf(x)), in, d / ((1.0f + fabsf(v)) * (1.0f + fabsf(v))))
ACT_CUDA(mish, x * mish_gate(x), in, d * mish_slope(v))
ACT_CUDA(swish, x * act_sigmoid(x), in, d * swish_slope(v))
