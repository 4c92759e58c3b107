/* half.h - conversion between float32 and the 16-bit floats bfloat16 and float16 on the host, for
 * weights in files. (Kernels use op/half.h.)
 *
 * Conversion to 16 bits rounds to nearest even; a number that is too large becomes infinity, and a
 * NaN stays a NaN. Conversion from 16 bits is exact. Threads: pure functions. */
#ifndef TENSOR_HALF_H
#define TENSOR_HALF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct err;

static inline bool tensor_is_half(enum tensor_dtype t)
{
    return t == TENSOR_BF16 || t == TENSOR_F16;
}

/* Convert n numbers. `type` is TENSOR_BF16 or TENSOR_F16. Input and output must not overlap. `half`
 * may have any alignment, as data in files has none. */
void tensor_widen(enum tensor_dtype type, const void *half, size_t n, float *out);
void tensor_narrow(enum tensor_dtype type, const float *x, size_t n, void *half);
/* Narrows like tensor_narrow(), for files. ERR_INPUT: a finite number would become infinite; half is unchanged then. */
int tensor_narrow_finite(enum tensor_dtype type, const float *x, size_t n, void *half,
                         struct err *err);

#endif
