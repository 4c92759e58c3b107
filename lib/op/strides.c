/* strides.c - memory order and strides of tensors. */
#include "op/op_priv.h"

void op_memory_order(const struct tensor *t, uint32_t *order)
{
    bool channels_last = t->layout == TENSOR_CHANNELS_LAST && t->shape.rank >= 3;
    uint32_t k;

    for (k = 0; k < t->shape.rank; k++)
        order[k] = k == 0 || !channels_last ? k : k + 1 < t->shape.rank ? k + 1 : 1;
}

void op_strides(const struct tensor *t, ptrdiff_t *step)
{
    uint32_t order[TENSOR_MAX_RANK], k;
    ptrdiff_t dense = 1;

    op_memory_order(t, order);
    for (k = t->shape.rank; k-- > 0;) {
        step[order[k]] = dense;
        /* may wrap if t is empty */
        dense = (ptrdiff_t)((size_t)dense * (size_t)t->shape.dim[order[k]]);
    }
}
