/* gelu_cuda.cu - see gelu.c. */
#include "op/act/act_cuda.cuh"

extern "C" {
#include "op/act/params.h"
}

#define ROOT_HALF 0.70710678f
#define ONE_OVER_ROOT_2_PI 0.39894228f
#define ROOT_2_OVER_PI 0.79788456f
#define CUBIC 0.044715f

__device__ static inline float normal(float x)
{
    return 0.5f * (1.0f + erff(x * ROOT_HALF));
}

__device__ static inline float normal_slope(float x)
{
    return normal(x) + x * (ONE_OVER_ROOT_2_PI * expf(-0.5f * (x * x)));
}

__device__ static inline float tanh_of(float x)
{
    return tanhf(ROOT_2_OVER_PI * (x + CUBIC * (x * (x * x))));
}

__device__ static inline float tanh_slope(float x)
{
    float t = tanh_of(x), du = ROOT_2_OVER_PI * (1.0f + 3.0f * CUBIC * (x * x));

    return 0.5f * ((1.0f + t) + x * ((1.0f - t) * (1.0f + t) * du));
}

ACT_CUDA_FUNCTIONS(exact, void, 0, x * normal(x), in, d * normal_slope(v))
ACT_CUDA_FUNCTIONS(tanh, void, 0, x * (0.5f * (1.0f + tanh_of(x))), in, d * tanh_slope(v))

static bool is_tanh(const struct op_call *c)
{
    return ((const struct gelu *)c->param)->is_tanh;
}

static int forward(const struct op_call *c, struct err *err)
{
    return is_tanh(c) ? tanh_fwd(c, err) : exact_fwd(c, err);
}

static int backward(const struct op_call *c, struct err *err)
{
    return is_tanh(c) ? tanh_bwd(c, err) : exact_bwd(c, err);
}

OP_CUDA(op_gelu, .fwd = forward, .bwd = backward);
