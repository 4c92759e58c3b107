/* top_k_cuda.cuh - top_k (top_k.h) on a GPU, with the same bytes: functions of struct cuda_math (device/cuda.h). */
#ifndef CODE_TOP_K_CUDA_CUH
#define CODE_TOP_K_CUDA_CUH

#include "device/device_cuda.cuh"

int code_cuda_residual_add(float *x, const float *gradient, size_t n, struct cuda_stream *s,
                           struct err *err);
int code_cuda_top_k_encode(double fraction, float *x, size_t n, uint8_t *out, struct cuda_stream *s,
                           struct err *err);
int code_cuda_top_k_sum(double fraction, const uint8_t *codes, size_t stride, uint32_t n_codes,
                        float *y, size_t n, struct cuda_stream *s, struct err *err);

#endif
