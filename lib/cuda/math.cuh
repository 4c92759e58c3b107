/* math.cuh - the computations beside ops: struct cuda_math of device/cuda.h. */
#ifndef CUDA_MATH_CUH
#define CUDA_MATH_CUH

#include "device/device_cuda.cuh"

int cuda_math_add(float *dst, const float *src, size_t n, struct cuda_stream *s, struct err *err);
int cuda_math_scale(float *x, size_t n, float by, struct cuda_stream *s, struct err *err);

#endif
