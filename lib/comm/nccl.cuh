/* nccl.cuh - communication between GPUs: the comm_* functions of the plugin's table
 * (device/cuda.h). */
#ifndef COMM_NCCL_CUH
#define COMM_NCCL_CUH

#include "device/device_cuda.cuh"

int comm_nccl_version(void); /* version code of the library; 0: unknown */
int comm_nccl_id(unsigned char id[CUDA_ID_BYTES], struct err *err);
int comm_nccl_open(const unsigned char id[CUDA_ID_BYTES], uint32_t rank, uint32_t world,
                   const struct cancel *cancel, struct cuda_comm **out, struct err *err);
int comm_nccl_state(struct cuda_comm *c, struct err *err);
int comm_nccl_all_reduce(struct cuda_comm *c, float *x, size_t n, struct cuda_stream *s,
                         struct err *err);
int comm_nccl_exchange(struct cuda_comm *c, const struct cuda_exchange *with, struct cuda_stream *s,
                       struct err *err);
int comm_nccl_abort(struct cuda_comm *c, struct err *err);
int comm_nccl_close(struct cuda_comm *c, struct err *err);

#endif
