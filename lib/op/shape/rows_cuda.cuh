/* rows_cuda.cuh - computes the list of rows (rows.h) on a GPU, and an order that groups equal rows.
 *
 * An index that is out of range is recorded (op_report) and becomes ROWS_BAD: nothing is read or
 * written for it, and a result that depends on it is NaN (of integers 0). */
#ifndef OP_SHAPE_ROWS_CUDA_CUH
#define OP_SHAPE_ROWS_CUDA_CUH

#include "op/shape/shape_cuda.cuh"

extern "C" {
#include "op/shape/rows.h"
}

static constexpr int64_t ROWS_BAD = -1;

/* Rounds up to 64 bytes, the alignment of the parts of a save or scratch area. */
static inline size_t rows_round(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Computes list [n] from the call's indices. Errors: ERR_DEVICE. */
int rows_cuda_list(const struct op_call *c, int64_t *list, struct err *err);

/* order [n]: the positions in the list, grouped by row: rows ascending, positions of equal rows
 * ascending, ROWS_BAD at the end. `rows`: number of rows of the data. `scratch`:
 * rows_cuda_order_scratch() bytes. Errors: ERR_DEVICE. */
int rows_cuda_order(cudaStream_t s, const int64_t *list, size_t n, size_t rows, int64_t *order,
                    void *scratch, struct err *err);
size_t rows_cuda_order_scratch(size_t n);

/* Number of rows of the data that the list may contain. */
static inline size_t rows_of(const struct rows *r, const struct tensor *data)
{
    if (r->kind == ROWS_AXIS)
        return r->stride;
    return r->width > 0 ? (size_t)tensor_elements(data) / r->width : 0;
}

#endif
