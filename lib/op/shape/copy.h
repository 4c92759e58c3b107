/* copy.h - elements of one tensor to places in another, as loops with a step on either side.
 *
 * What moves data without computing is a few of these: Transpose is one, Concat one per input, Pad
 * one per region. No two rounds of one copy write to the same place, so it also goes back: then
 * `from` and `to` change roles. The exception is a step 0 on the `from` side, a repetition: going
 * back it can only add. */
#ifndef OP_SHAPE_COPY_H
#define OP_SHAPE_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

enum { COPY_AXES = 2 * TENSOR_MAX_RANK };

struct copy_axis {
    size_t size;
    ptrdiff_t from, to; /* steps in elements */
};

struct copy {
    uint32_t n;
    struct copy_axis axis[COPY_AXES];
    ptrdiff_t from, to; /* the first element */
    bool is_empty;
};

void copy_add_axis(struct copy *c, int64_t size, ptrdiff_t from, ptrdiff_t to);
/* After the last axis: merges them and puts them in the order in which memory likes them. */
void copy_settle(struct copy *c);
struct copy copy_back(const struct copy *c);
/* y[to] = x[from]; elements of `size` bytes: 1, 2, 4 or 8. */
void copy_run(const struct copy *c, const void *x, void *y, size_t size);
/* y[to] += x[from], float32 or bfloat16 */
void copy_run_add(const struct copy *c, const void *x, void *y);
void copy_run_add_half(const struct copy *c, const void *x, void *y);

#endif
