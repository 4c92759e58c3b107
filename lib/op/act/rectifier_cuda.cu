/* rectifier_cuda.cu - see rectifier.c. */
#include "op/act/act_cuda.cuh"

#define ROW(id_, name_, since_, reads_) ACT_CUDA(id_, reads_)
#define WITH(id_, name_, since_, reads_, ...) ACT_CUDA_WITH(id_, reads_)
ACT_RECTIFIER_LIST(ROW, WITH)
