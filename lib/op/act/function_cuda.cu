/* function_cuda.cu - see function.c, sigmoid.c, tanh.c, round.c. */
#include "op/act/act_cuda.cuh"

#define TWO_OVER_ROOT_PI 1.1283791671f

ACT_CUDA(sigmoid, act_sigmoid(x), out, d * (v * (1.0f - v)))
ACT_CUDA(tanh, tanhf(x), out, d * ((1.0f - v) * (1.0f + v)))

ACT_CUDA(floor, floorf(x), out, d * 0.0f)
ACT_CUDA(ceil, ceilf(x), out, d * 0.0f)
ACT_CUDA(round_11, rintf(x), out, d * 0.0f)

ACT_CUDA_WIDE(exp, expf(x), out, d * v)
ACT_CUDA_WIDE(log, logf(x), in, d / v)
ACT_CUDA_WIDE(sqrt, sqrtf(x), out, d * 0.5f / v)
ACT_CUDA_WIDE(reciprocal, 1.0f / x, out, -d * (v * v))
ACT_CUDA_WIDE(erf, erff(x), in, d * (TWO_OVER_ROOT_PI * expf(-(v * v))))
