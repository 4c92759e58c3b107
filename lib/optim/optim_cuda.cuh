/* optim_cuda.cuh - optim/optim.h on a GPU: the functions for the plugin's table (struct cuda_math
 * of device/cuda.h). */
#ifndef OPTIM_OPTIM_CUDA_CUH
#define OPTIM_OPTIM_CUDA_CUH

#include "device/device_cuda.cuh"

extern "C" {
#include "optim/optim.h"
}

/* scan_cuda.cu */
int cuda_scan(const float *x, size_t n, struct cuda_scan *result, struct cuda_stream *s,
              struct err *err);

/* optim_cuda.cu */
int cuda_optim_open(const struct optim_opts *opts, const struct cuda_statistic *statistics,
                    uint32_t n_statistics, struct cuda_optim **out, struct err *err);
void cuda_optim_close(struct cuda_optim *o); /* NULL is fine */
int cuda_optim_scan(struct cuda_optim *o, float *g, float clip, struct cuda_scan *result,
                    struct cuda_stream *s, struct err *err);
int cuda_optim_update(struct cuda_optim *o, const struct optim_hyper *h,
                      const struct optim_state *state, float share, struct cuda_stream *s,
                      struct err *err);

#endif
