/* power_sgd_cuda.cuh - power_sgd (power_sgd.h) on a GPU, with the same bits: functions of struct cuda_math
 * (device/cuda.h). */
#ifndef CODE_POWER_SGD_CUDA_CUH
#define CODE_POWER_SGD_CUDA_CUH

#include "device/device_cuda.cuh"

int code_cuda_power_sgd_begin(const struct power_sgd *m, float *q, struct cuda_stream *s,
                              struct err *err);
int code_cuda_power_sgd_left(const struct power_sgd *m, const float *x, const float *q, float *p,
                             struct cuda_stream *s, struct err *err);
int code_cuda_power_sgd_orthogonalize(const struct power_sgd *m, float *p, struct cuda_stream *s,
                                      struct err *err);
int code_cuda_power_sgd_right(const struct power_sgd *m, const float *x, const float *p, float *q,
                              struct cuda_stream *s, struct err *err);
int code_cuda_power_sgd_decode(const struct power_sgd *m, const float *p, const float *q, float *y,
                               struct cuda_stream *s, struct err *err);
int code_cuda_power_sgd_subtract(const struct power_sgd *m, const float *p, const float *q,
                                 float *x, struct cuda_stream *s, struct err *err);

#endif
