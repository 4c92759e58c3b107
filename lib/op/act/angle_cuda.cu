/* angle_cuda.cu - see angle.c. */
#include "op/act/act_cuda.cuh"

#define WIDE(id_, name_, since_, reads_) ACT_CUDA_WIDE(id_, reads_)
ACT_ANGLE_LIST(WIDE)
