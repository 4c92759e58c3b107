/* relu_cuda.cu - see relu.c. */
#include "op/act/act_cuda.cuh"

ACT_CUDA(relu, x < 0.0f ? 0.0f : x, out, v <= 0.0f ? 0.0f : d)
