/* half.h - conversion between float32 and the two floats of 16 bits, bfloat16 and float16, on the
 * host: for weights in files. (Kernels convert with op/half.h.)
 *
 * To 16 bits: to the nearest, of two the even one; what is too large becomes infinity; a NaN stays
 * a NaN. From 16 bits every value is exact. Threads: pure functions. */
#ifndef TENSOR_HALF_H
#define TENSOR_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

static inline bool tensor_is_half(enum tensor_dtype t)
{
    return t == TENSOR_BF16 || t == TENSOR_F16;
}

/* n numbers; `type` is TENSOR_BF16 or TENSOR_F16. The memory of x and y does not overlap, and
 * `half` is aligned to nothing: files place it where they like. */
void tensor_widen(enum tensor_dtype type, const void *half, size_t n, float *out);
void tensor_narrow(enum tensor_dtype type, const float *x, size_t n, void *half);

#endif
