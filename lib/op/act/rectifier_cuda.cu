/* rectifier_cuda.cu - see rectifier.c. */
#include "op/act/act_cuda.cuh"

ACT_CUDA(relu, out)
ACT_CUDA_WITH(leaky_relu, in)
ACT_CUDA_WITH(thresholded_relu, in)
ACT_CUDA_WITH(elu, in)
ACT_CUDA_WITH(selu, in)
ACT_CUDA_WITH(celu, in)
ACT_CUDA_WITH(hard_sigmoid, out)
ACT_CUDA(hard_swish, in)
ACT_CUDA_WITH(shrink, in)
