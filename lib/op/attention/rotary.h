/* rotary.h - the parameters of Rotary, for its kernels. */
#ifndef OP_ATTENTION_ROTARY_H
#define OP_ATTENTION_ROTARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/tensor.h"

struct rotary {
    uint32_t axes; /* number of axes of y without the last */
    int64_t size[TENSOR_MAX_RANK];
    /* stride of each axis, in elements */
    ptrdiff_t x[TENSOR_MAX_RANK], cos[TENSOR_MAX_RANK], sin[TENSOR_MAX_RANK];
    int64_t rows;                 /* product of the sizes of these axes */
    int64_t half;                 /* half the size of the last axis */
    bool pairs;                   /* rotates adjacent elements; else corresponding elements of the
                                     two halves */
    ptrdiff_t cos_half, sin_half; /* offset from the angle of an element of the first half to that
                                     of the second: 0 or half */
};

/* Iterates over the rows of y. */
struct rotary_row {
    int64_t index[TENSOR_MAX_RANK];
    ptrdiff_t x, cos, sin;
};

static inline void rotary_next(const struct rotary *r, struct rotary_row *row)
{
    for (uint32_t k = r->axes; k-- > 0;) {
        row->x += r->x[k];
        row->cos += r->cos[k];
        row->sin += r->sin[k];
        if (++row->index[k] < r->size[k])
            return;
        row->index[k] = 0;
        row->x -= r->x[k] * (ptrdiff_t)r->size[k];
        row->cos -= r->cos[k] * (ptrdiff_t)r->size[k];
        row->sin -= r->sin[k] * (ptrdiff_t)r->size[k];
    }
}

#endif
