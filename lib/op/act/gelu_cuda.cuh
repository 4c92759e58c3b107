/* gelu_cuda.cuh - the functions of gelu.c and their slopes, for the kernels of GPUs. */
#ifndef OP_ACT_GELU_CUDA_CUH
#define OP_ACT_GELU_CUDA_CUH

#define GELU_ROOT_HALF 0.70710678f
#define GELU_ONE_OVER_ROOT_2_PI 0.39894228f
#define GELU_ROOT_2_OVER_PI 0.79788456f
#define GELU_CUBIC 0.044715f

__device__ static inline float gelu_normal(float x)
{
    return 0.5f * (1.0f + erff(x * GELU_ROOT_HALF));
}

__device__ static inline float gelu_slope(float x)
{
    return gelu_normal(x) + x * (GELU_ONE_OVER_ROOT_2_PI * expf(-0.5f * (x * x)));
}

__device__ static inline float gelu_tanh(float x)
{
    return tanhf(GELU_ROOT_2_OVER_PI * (x + GELU_CUBIC * (x * (x * x))));
}

__device__ static inline float gelu_tanh_slope(float x)
{
    float t = gelu_tanh(x), du = GELU_ROOT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * (x * x));

    return 0.5f * ((1.0f + t) + x * ((1.0f - t) * (1.0f + t) * du));
}

#endif
