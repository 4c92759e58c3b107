/* contract_cuda.cuh - the contraction of contract.h on a GPU: out = scale * sum of x y over axes
 * with strides, stored or accumulated. Without a summed axis it is a copy between any two orders;
 * with y NULL it is a sum of x, such as the gradient of a bias.
 *
 * Sums are float32, in an order that depends only on the axes: first within a thread, then within a
 * thread block in a tree, then over the parts into which a long sum is split. */
#ifndef OP_GEMM_CONTRACT_CUDA_CUH
#define OP_GEMM_CONTRACT_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/gemm/contract.h"
}

size_t contract_scratch_bytes(const struct contract *k); /* 64-byte aligned */
/* Enqueues the contraction. x has the type `type`: float32, bfloat16 or float16. contract_finish()
 * has been called for k. scratch: contract_scratch_bytes(k). Errors: ERR_DEVICE. */
int contract_launch(const struct contract *k, const void *x, enum tensor_dtype type, const float *y,
                    float scale, float *out, bool add, void *scratch, cudaStream_t stream,
                    struct err *err);

#endif
