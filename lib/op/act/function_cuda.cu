/* function_cuda.cu - see function.c. */
#include "op/act/act_cuda.cuh"

#define ROW(id_, name_, since_, reads_) ACT_CUDA(id_, reads_)
#define WIDE(id_, name_, since_, reads_) ACT_CUDA_WIDE(id_, reads_)
ACT_FUNCTION_LIST(ROW, WIDE)
