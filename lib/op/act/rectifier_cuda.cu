/* rectifier_cuda.cu - see rectifier.c. */
#include "op/act/act_cuda.cuh"

__device__ static inline float within_0_1(float x)
{
    return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x;
}

ACT_CUDA_WITH(leaky_relu, 1, x < 0.0f ? p * x : x, in, v <= 0.0f ? p * d : d)
ACT_CUDA_WITH(thresholded_relu, 1, x <= p ? 0.0f : x, in, v <= p ? 0.0f : d)
ACT_CUDA_WITH(elu, 1, x < 0.0f ? p * expm1f(x) : x, in, v <= 0.0f ? d * (p * expf(v)) : d)
ACT_CUDA_WITH(selu, 2, q * (x <= 0.0f ? p * expm1f(x) : x), in, d * (q * (v <= 0.0f ? p * expf(v) : 1.0f)))
ACT_CUDA_WITH(celu, 1, x < 0.0f ? p * expm1f(x / p) : x, in, v < 0.0f ? d * expf(v / p) : d)
ACT_CUDA_WITH(hard_sigmoid, 2, within_0_1(p * x + q), out, v <= 0.0f || v >= 1.0f ? 0.0f : p * d)
ACT_CUDA(hard_swish, x * within_0_1(x * (1.0f / 6.0f) + 0.5f), in,
         v <= -3.0f ? 0.0f : v >= 3.0f ? d : d * (v * (1.0f / 3.0f) + 0.5f))
ACT_CUDA_WITH(shrink, 2, x < -p ? x + q : x > p ? x - q : x * 0.0f, in, v < -p || v > p ? d : 0.0f)
