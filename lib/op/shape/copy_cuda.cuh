/* copy_cuda.cuh - runs a struct copy (copy.h) on a GPU.
 *
 * The order of its axes does not matter: threads process the written elements in memory order. Runs
 * of 16, 8 or 4 contiguous bytes are moved as one unit. If the two sides are contiguous along
 * different axes, square tiles are transposed in shared memory. */
#ifndef OP_SHAPE_COPY_CUDA_CUH
#define OP_SHAPE_COPY_CUDA_CUH

#include "op/shape/shape_cuda.cuh"

extern "C" {
#include "op/shape/copy.h"
}

/* y[to] = x[from], or += for floats. A stride of 0 in `to` is a sum over that axis: float32 only,
 * with `scratch` of copy_cuda_scratch() bytes. Errors: ERR_DEVICE. */
int copy_cuda_run(cudaStream_t s, const struct copy *c, const void *x, void *y,
                  enum tensor_dtype dtype, bool add, void *scratch, struct err *err);
/* Returns the scratch in bytes; 0 if nothing is summed, or the sums are short. */
size_t copy_cuda_scratch(const struct copy *c);

/* ---- for copy_cuda.cu and copy_sum_cuda.cu ---- */

/* Axes innermost first; `from` and `to` in units. */
struct copy_walk {
    uint32_t n;
    struct op_divisor size[COPY_AXES];
    int64_t from[COPY_AXES], to[COPY_AXES];
};

__device__ static inline void copy_place(const struct copy_walk &w, size_t i, int64_t *from,
                                         int64_t *to)
{
    for (uint32_t k = 0; k < w.n; k++) {
        uint64_t rest = i, at = k + 1 < w.n ? op_digit(&rest, w.size[k]) : rest;

        *from += (int64_t)at * w.from[k];
        *to += (int64_t)at * w.to[k];
        i = rest;
    }
}

static inline void copy_walk_add(struct copy_walk *w, const struct copy_axis *a, size_t unit)
{
    w->size[w->n] = op_divisor_of(a->size);
    w->from[w->n] = a->from / (ptrdiff_t)unit;
    w->to[w->n++] = a->to / (ptrdiff_t)unit;
}

/* Implemented in copy_sum_cuda.cu; c has axes whose `to` is 0. */
int copy_cuda_sum(cudaStream_t s, const struct copy *c, const float *x, float *y, bool add,
                  void *scratch, struct err *err);

#endif
