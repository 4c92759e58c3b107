/* soft_cuda.cu - see soft.c. */
#include "op/act/act_cuda.cuh"

ACT_CUDA(softplus, in)
ACT_CUDA(softsign, in)
ACT_CUDA(mish, in)
ACT_CUDA(swish, in)
