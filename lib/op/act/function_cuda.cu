/* function_cuda.cu - see function.c. */
#include "op/act/act_cuda.cuh"

ACT_CUDA_WIDE(exp, out)
ACT_CUDA_WIDE(log, in)
ACT_CUDA_WIDE(sqrt, out)
ACT_CUDA_WIDE(reciprocal, out)
ACT_CUDA_WIDE(erf, in)
ACT_CUDA(sigmoid, out)
ACT_CUDA(tanh, out)
ACT_CUDA(floor, none)
ACT_CUDA(ceil, none)
ACT_CUDA(round_11, none)
