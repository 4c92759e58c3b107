/* contract_cuda.cuh - contract.h's sums on a GPU: out = scale * sum of x y over axes with steps, stored or
 * added. With nothing to sum over it is a copy between any two orders, with y NULL a sum of x: the gradient
 * of a bias.
 *
 * Sums are float32, in an order that depends on the axes alone: those of a thread first, then those of
 * a block in a tree, then those of the parts that a long sum is cut into. */
#ifndef OP_GEMM_CONTRACT_CUDA_CUH
#define OP_GEMM_CONTRACT_CUDA_CUH

#include "op/op_cuda.cuh"

extern "C" {
#include "op/gemm/contract.h"
}

size_t contract_scratch_bytes(const struct contract *k); /* 64-byte aligned */
/* x: of `type`, float32, bfloat16 or float16. k is settled. */
int contract_launch(const struct contract *k, const void *x, enum tensor_dtype type, const float *y, float scale,
                    float *out, bool add, void *scratch, cudaStream_t stream, struct err *err);

#endif
