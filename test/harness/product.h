/* product.h - the matrix product of the kernel library (oneDNN) for square matrices, in the layout
 * that the library prefers: a limit for CPU kernels. Threads: each object belongs to one thread. */
#ifndef HARNESS_PRODUCT_H
#define HARNESS_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include <oneapi/dnnl/dnnl.h>

#include "tensor/tensor.h"

struct product {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_t run;
    dnnl_memory_t memory[3];
};

/* Prepares the product of two matrices [side, side] of zeros, of float32 or bfloat16; the values do
 * not affect the speed. false: the library has no such kernel. The caller calls product_close() in
 * both cases. */
bool product_open(struct product *p, enum tensor_dtype type, int64_t side);
/* Computes the product once. false: the library reported an error. */
bool product_run(struct product *p);
void product_close(struct product *p);

#endif
