/* copy.h - copies elements between tensors, as nested loops with strides on both sides.
 *
 * Ops that move data without computing are a few such copies: Transpose is one, Concat one per
 * input, Pad one per region. No two iterations of a copy write to the same element, so it can be
 * reversed by exchanging `from` and `to`. The exception is a stride of 0 in `from`, a repetition:
 * its reverse can only accumulate. */
#ifndef OP_SHAPE_COPY_H
#define OP_SHAPE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

enum { COPY_AXES = 2 * TENSOR_MAX_RANK };

struct copy_axis {
    size_t size;
    ptrdiff_t from, to; /* strides in elements */
};

struct copy {
    uint32_t n;
    struct copy_axis axis[COPY_AXES];
    ptrdiff_t from, to; /* index of the first element */
    bool is_empty;
};

void copy_add_axis(struct copy *c, int64_t size, ptrdiff_t from, ptrdiff_t to);
/* Call after the last axis was added: merges axes and sorts them for memory locality. */
void copy_finish(struct copy *c);
struct copy copy_back(const struct copy *c);
/* y[to] = x[from]; elements of `size` bytes: 1, 2, 4 or 8. */
void copy_run(const struct copy *c, const void *x, void *y, size_t size);
/* y[to] += x[from], float32, or bfloat16 (half) */
void copy_run_add(const struct copy *c, const void *x, void *y);
void copy_run_add_half(const struct copy *c, const void *x, void *y);

#endif
