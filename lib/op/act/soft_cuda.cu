/* soft_cuda.cu - see soft.c. */
#include "op/act/act_cuda.cuh"

#define ROW(id_, name_, since_, reads_) ACT_CUDA(id_, reads_)
ACT_SOFT_LIST(ROW)
ACT_CUDA(swish, in)
