/* angle_cuda.cu - see angle.c. */
#include "op/act/act_cuda.cuh"

ACT_CUDA_WIDE(sin, in)
ACT_CUDA_WIDE(cos, in)
ACT_CUDA_WIDE(tan, out)
ACT_CUDA_WIDE(asin, in)
ACT_CUDA_WIDE(acos, in)
ACT_CUDA_WIDE(atan, in)
ACT_CUDA_WIDE(sinh, in)
ACT_CUDA_WIDE(cosh, in)
ACT_CUDA_WIDE(asinh, in)
ACT_CUDA_WIDE(acosh, in)
ACT_CUDA_WIDE(atanh, in)
