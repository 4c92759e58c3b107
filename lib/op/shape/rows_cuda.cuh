/* rows_cuda.cuh - the list of rows (rows.h) made by a GPU, and the order in which equal rows come together.
 *
 * An index that is out of range is noted (op_notice). It becomes ROWS_BAD: nothing is read or written for it, and
 * where a number of it is to be, there is NaN (of integers 0). */
#ifndef OP_SHAPE_ROWS_CUDA_CUH
#define OP_SHAPE_ROWS_CUDA_CUH

#include "op/shape/shape_cuda.cuh"

extern "C" {
#include "op/shape/rows.h"
}

static constexpr int64_t ROWS_BAD = -1;

/* Parts of a save or scratch area start at multiples of 64 bytes. */
static inline size_t rows_round(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* list [n] of the call's indices. */
int rows_cuda_list(const struct op_call *c, int64_t *list, struct err *err);

/* order [n]: the places of the list, those of equal rows together and ascending, rows ascending, ROWS_BAD at
 * the end. `rows`: how many there are. `scratch` of rows_cuda_order_scratch() bytes. */
int rows_cuda_order(cudaStream_t s, const int64_t *list, size_t n, size_t rows, int64_t *order, void *scratch,
                    struct err *err);
size_t rows_cuda_order_scratch(size_t n);

/* Rows of the data that the list may name. */
static inline size_t rows_of(const struct rows *r, const struct tensor *data)
{
    if (r->kind == ROWS_AXIS)
        return r->stride;
    return r->width > 0 ? (size_t)tensor_elements(data) / r->width : 0;
}

#endif
